"""What the loops of the trial APIs cost: steps/s against the bare loop of the same model.

    python -m benchmarks.bench_trials [--runs 5] [--steps 2000] [--only EstimatorTrial ...]

Both train the same graph on the same data in this process, in turn; building graphs and opening
sessions is left out. A trial runs as an experiment does: workloads of 100 batches, metrics averaged
over them, event files, a checkpoint at the end. An Experiment evaluates at the end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import _figures

sys.path.insert(0, str(Path(__file__).parent.parent / "module_files"))

HPARAMS = {"global_batch_size": 32, "units": 64, "dropout": 0.1, "learning_rate": 1e-3}
CONFIG = {"data": {"validation_records": 360}, "hyperparameters": HPARAMS}
KERAS_HPARAMS = {
    "global_batch_size": 32, "filters": 16, "dropout": 0.1, "learning_rate": 1e-3, "patience": 99,
}  # fmt: skip
KERAS_CONFIG = {"data": {"validation_records": 360}, "hyperparameters": KERAS_HPARAMS}
WORKLOAD = 100
DIGITS_CONFIG = {"hyperparameters": {"global_batch_size": 64}}


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--only", nargs="+", choices=PAIRS, default=list(PAIRS))
    _figures.add_json_option(parser)
    options = parser.parse_args()
    print("| loop | steps/s, median | lowest | highest | ratio to the bare loop |")
    print("|---|---|---|---|---|")
    figures = [_compare(api, options.runs, options.steps) for api in options.only]
    _figures.write(figures, options.json)


def _compare(api: str, runs: int, steps: int) -> _figures.Figure:
    """Prints a bare loop and that of an API, each a row."""
    bare, run_bare, run_api = PAIRS[api]
    rates: dict[str, list[float]] = {bare: [], api: []}
    run_api(100)  # what only the first run pays
    for _ in range(runs):
        rates[bare].append(_rate(run_bare, steps))
        rates[api].append(_rate(run_api, steps))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        rate, ratio = medians[name], medians[name] / medians[bare]
        print(f"| {name} | {rate:.0f} | {min(values):.0f} | {max(values):.0f} | {ratio:.3f} |")
    return _figures.compare(api, rates[api], "steps/s", bare, rates[bare])


def _rate(run: Callable[[int], float], steps: int) -> float:
    return steps / run(steps)


def run_session(steps: int) -> float:
    """Trains as a script of one's own would; returns seconds, building the graph left out."""
    import tensorflow.compat.v1 as tf
    from digits_tensorflow_trial import DigitsTrial, make_data_loaders

    with tf.Graph().as_default(), tf.Session() as session:
        training, _ = make_data_loaders(CONFIG, HPARAMS)
        trial = DigitsTrial(HPARAMS)
        iterator = tf.data.make_initializable_iterator(training.repeat())
        is_training = tf.placeholder_with_default(False, [])
        outputs = trial.build_graph(iterator.get_next(), is_training)
        train = trial.optimizer().minimize(
            outputs["loss"], global_step=tf.train.get_or_create_global_step()
        )
        session.run([tf.global_variables_initializer(), iterator.initializer])
        fetched = [{name: outputs[name] for name in ("loss", "error")}, train]
        started = time.perf_counter()
        for _ in range(steps):
            session.run(fetched, {is_training: True})
        return time.perf_counter() - started


def run_tensorflow_trial(steps: int) -> float:
    """Trains as an experiment; returns the seconds of the loop, its report included."""
    from digits_tensorflow_trial import DigitsTrial

    from generic_trainer.trials import run_fn_from_trial

    config = {**CONFIG, "searcher": {"metric": "error", "max_length": {"batches": steps}}}
    timed = _timed(DigitsTrial)
    with tempfile.TemporaryDirectory() as folder:
        run_fn_from_trial(timed)(fn_args(folder, config))
    return timed.finished - timed.started


def run_fit(steps: int) -> float:
    """Trains by `model.fit`; returns seconds, the first workload left out."""
    from digits_keras_trial import DigitsTrial

    from generic_trainer.trials.keras import TFKerasTrialContext

    trial = DigitsTrial(TFKerasTrialContext.from_config(KERAS_CONFIG))
    data, model = trial.build_training_data_loader().repeat(), trial.build_model()
    model.fit(data, steps_per_epoch=WORKLOAD, verbose=0)
    started = time.perf_counter()
    model.fit(data, steps_per_epoch=steps, verbose=0)
    return time.perf_counter() - started


def run_keras_trial(steps: int) -> float:
    """Trains the same as an experiment; returns seconds, the first workload left out."""
    from digits_keras_trial import DigitsTrial

    from generic_trainer.trials import run_fn_from_trial

    length = {"batches": WORKLOAD + steps}
    config = {**KERAS_CONFIG, "searcher": {"metric": "val_loss", "max_length": length}}
    timed = _timed(DigitsTrial)
    with tempfile.TemporaryDirectory() as folder:
        run_fn_from_trial(timed)(fn_args(folder, config))
    return timed.finished - timed.first_finished


def run_estimator(steps: int) -> float:
    """Trains by `Estimator.train`; returns the seconds from the open session to the last batch."""
    from generic_trainer.trials.estimator import EstimatorTrialContext

    trial = _digits_trial()(EstimatorTrialContext.from_config(DIGITS_CONFIG))
    spec = trial.build_train_spec()
    trial.build_estimator().train(lambda: spec.input_fn().repeat(), hooks=spec.hooks, steps=steps)
    return trial.timer.seconds


def run_estimator_trial(steps: int) -> float:
    """Trains the same as an experiment."""
    from generic_trainer.trials import run_fn_from_trial

    trial_class = _digits_trial()
    config = {**DIGITS_CONFIG, "searcher": {"metric": "loss", "max_length": {"batches": steps}}}
    with tempfile.TemporaryDirectory() as folder:
        run_fn_from_trial(trial_class)(fn_args(folder, config))
    return trial_class.timer.seconds


def _digits_trial() -> Any:
    """Returns a trial class with the model of `module_files/digits_experiment.py`."""
    import digits_experiment as digits
    import numpy as np
    from sklearn.datasets import load_digits

    from generic_trainer.estimator import tf
    from generic_trainer.trials.estimator import EstimatorTrial

    def batches() -> Any:
        images, labels = load_digits(return_X_y=True)
        images = (images[360:] / 16).astype(np.float32).reshape(-1, 8, 8, 1)
        return tf.data.Dataset.from_tensor_slices((images, labels[360:].astype(np.int64))).batch(64)

    class DigitsTrial(EstimatorTrial):
        timer = _timer()

        def build_estimator(self) -> Any:
            self.context.wrap_optimizer(None)
            return tf.estimator.Estimator(digits.model_fn, params=digits.HPARAMS)

        def build_train_spec(self) -> Any:
            return tf.estimator.TrainSpec(
                lambda: self.context.wrap_dataset(batches()), hooks=[self.timer]
            )

        def build_validation_spec(self) -> Any:
            return tf.estimator.EvalSpec(batches, steps=1)

        def build_serving_input_receiver_fns(self) -> Any:
            return {"digits": digits.receive_images}

    return DigitsTrial


def run_estimator_of_experiment(steps: int) -> float:
    """Trains the estimator of `module_files/digits_experiment.py` by one call of its `train`."""
    with tempfile.TemporaryDirectory() as folder:
        experiment, timer = _experiment(folder, steps)
        experiment.train()
    return timer.seconds


def run_experiment(steps: int) -> float:
    """Trains the same by `Experiment.train_and_evaluate`."""
    with tempfile.TemporaryDirectory() as folder:
        experiment, timer = _experiment(folder, steps)
        experiment.train_and_evaluate()
    return timer.seconds


def _experiment(folder: str, steps: int) -> tuple[Any, Any]:
    from digits_experiment import HPARAMS as DEFAULTS
    from digits_experiment import experiment_fn

    from generic_trainer.trials.experiment import HParams, RunConfig

    hparams = HParams(**{**DEFAULTS.values(), "train_steps": steps, "min_eval_frequency": steps})
    timer = _timer()
    experiment = experiment_fn(RunConfig(folder), hparams)
    experiment.extend_train_hooks([timer])
    return experiment, timer


def _timer() -> Any:
    """Returns a hook that takes the time from the open session to the last batch."""
    import tensorflow as tf

    class Timer(tf.compat.v1.train.SessionRunHook):
        started = finished = 0.0

        def after_create_session(self, session: Any, coord: Any) -> None:
            self.started = time.perf_counter()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.finished = time.perf_counter()

        @property
        def seconds(self) -> float:
            return self.finished - self.started

    return Timer()


def _timed(trial_class: type[Any]) -> Any:
    """Returns the class with a controller that notes when training starts and ends."""

    class Timed(trial_class):
        __module__ = trial_class.__module__
        started = first_finished = finished = 0.0

        @classmethod
        def open_controller(cls, run: Any) -> Any:
            controller = super().open_controller(run)
            train = controller.train

            def noted(batches: int) -> Any:
                cls.started = cls.started or time.perf_counter()
                metrics = train(batches)
                cls.finished = time.perf_counter()
                cls.first_finished = cls.first_finished or cls.finished
                return metrics

            controller.train = noted
            return controller

    return Timed


def fn_args(folder: str, config: dict[str, Any]) -> Any:
    """Returns what a `run_fn` is called with, to train an experiment in a folder."""
    return SimpleNamespace(
        custom_config=config,
        hyperparameters=None,
        schema_path=None,
        transform_graph_path=None,
        model_run_dir=folder,
        checkpoint_dir=os.path.join(folder, "checkpoints"),
        serving_model_dir=os.path.join(folder, "Format-Serving"),
    )


# API → the bare loop's name, the bare loop, the API's.
PAIRS = {
    "TFKerasTrial": ("Model.fit", run_fit, run_keras_trial),
    "TensorFlowTrial": ("Session.run", run_session, run_tensorflow_trial),
    "EstimatorTrial": ("Estimator.train", run_estimator, run_estimator_trial),
    "Experiment": ("Estimator.train of it", run_estimator_of_experiment, run_experiment),
}


if __name__ == "__main__":
    main()
