"""What the trial loop costs: steps/s of `TensorFlowTrial` against a bare `Session.run`.

    python -m benchmarks.bench_trials [--runs 5] [--steps 2000]

Both train the same graph (`module_files/digits_tensorflow_trial.py`) on the same data in this
process, in turn. The trial runs as an experiment does: workloads of 100 batches, metrics averaged
over them, event files, a checkpoint at the end.
"""

from __future__ import annotations

import argparse
import json
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
sys.path.insert(0, str(Path(__file__).parent.parent / "module_files"))

HPARAMS = {"global_batch_size": 32, "units": 64, "dropout": 0.1, "learning_rate": 1e-3}
CONFIG = {"data": {"validation_records": 360}, "hyperparameters": HPARAMS}


def main() -> None:
    """Prints one table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {"Session.run": [], "TensorFlowTrial": []}
    run_trial(100)  # what only the first run pays
    for _ in range(options.runs):
        rates["Session.run"].append(_rate(run_bare, options.steps))
        rates["TensorFlowTrial"].append(_rate(run_trial, options.steps))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = medians["TensorFlowTrial"] / medians["Session.run"]
    print("| loop | steps/s, median | lowest | highest |\n|---|---|---|---|")
    for name, values in rates.items():
        print(f"| {name} | {medians[name]:.0f} | {min(values):.0f} | {max(values):.0f} |")
    print(f"\nratio: {ratio:.3f}")
    print(json.dumps({"medians": medians, "ratio": ratio, "runs": rates}))


def _rate(run: Callable[[int], float], steps: int) -> float:
    return steps / run(steps)


def run_bare(steps: int) -> float:
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


def run_trial(steps: int) -> float:
    """Trains as an experiment; returns the seconds of the loop, its report included."""
    from digits_tensorflow_trial import DigitsTrial

    from generic_trainer.trials import run_fn_from_trial

    config = {**CONFIG, "searcher": {"metric": "error", "max_length": {"batches": steps}}}
    timed = _timed(DigitsTrial)
    with tempfile.TemporaryDirectory() as folder:
        run_fn_from_trial(timed)(_fn_args(folder, config))
    return timed.finished - timed.started


def _timed(trial_class: type[Any]) -> Any:
    """Returns the class with a controller that notes when training starts and ends."""

    class Timed(trial_class):
        __module__ = trial_class.__module__
        started = finished = 0.0

        @classmethod
        def open_controller(cls, run: Any) -> Any:
            controller = super().open_controller(run)
            train = controller.train

            def noted(batches: int) -> Any:
                cls.started = cls.started or time.perf_counter()
                metrics = train(batches)
                cls.finished = time.perf_counter()
                return metrics

            controller.train = noted
            return controller

    return Timed


def _fn_args(folder: str, config: dict[str, Any]) -> Any:
    return SimpleNamespace(
        custom_config=config,
        hyperparameters=None,
        schema_path=None,
        model_run_dir=folder,
        checkpoint_dir=os.path.join(folder, "checkpoints"),
        serving_model_dir=os.path.join(folder, "Format-Serving"),
    )


if __name__ == "__main__":
    main()
