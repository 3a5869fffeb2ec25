"""Runs experiments without a pipeline around them."""

import json
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._entry_points import may_define, run_fn_of
from generic_trainer.trials import run_fn_from_trial
from generic_trainer.trials._trial import TrialRun, current
from generic_trainer.user_code import bundle_module_file

# Import lines of code of that time → those that take their place, the first that fits.
IMPORTS = {
    "from tensorflow.contrib.learn import": "from generic_trainer.trials.experiment import",
    "from tensorflow.contrib.training import": "from generic_trainer.trials.experiment import",
    "from tensorflow.contrib import": "from generic_trainer.trials.experiment.contrib import",
    "from tensorflow.contrib.": "from generic_trainer.trials.experiment.contrib.",
    "import tensorflow.contrib.": "import generic_trainer.trials.experiment.contrib.",
    "from tensorflow.python.estimator": "from generic_trainer.trials.experiment.python.estimator",
    "import tensorflow.compat.v1 as tf": "from generic_trainer.estimator import tf1 as tf",
    "import determined as det": "import generic_trainer.trials as det",
    "from determined": "from generic_trainer.trials",
    "from pedl.frameworks.keras import TFKerasTensorBoard, TFKerasTrial,": (
        "from generic_trainer.trials.keras import TFKerasTensorBoard, KerasTrial as TFKerasTrial,"
    ),
    "from pedl.frameworks.tensorflow import": "from generic_trainer.trials.tensorflow import",
    "from pedl.trial import": "from generic_trainer.trials import",
    "from pedl.util import": "from generic_trainer.trials import",
}


@pytest.fixture
def run_experiment(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Returns a function that runs an experiment and returns what `trials.json` says."""

    def run(trial_class: type, config: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
        fn_args = make_fn_args(tmp_path, custom_config=config, **fields)
        run_fn_from_trial(trial_class)(fn_args)
        return trials_of(fn_args)

    return run


@pytest.fixture
def open_trial(one_weight: type) -> Iterator[Callable[..., Any]]:
    """Opens trials outside of an experiment, by default of the API's `one_weight`; closes them."""
    opened = []

    def open_(
        trial_class: type = one_weight,
        size: int = 1,
        data: Any = None,
        hparams: Any = None,
        config: Any = None,
        callbacks: Any = None,
        **fields: Any,
    ) -> Any:
        if callbacks is not None:
            members = {
                "__module__": trial_class.__module__,
                "keras_callbacks": lambda _: callbacks,
            }
            trial_class = type("Called", (trial_class,), members)
        run = {
            "trial_id": 1,
            "config": {"data": data or {}, **(config or {})},
            "hparams": {"global_batch_size": size, **(hparams or {})},
            "seed": 3,
            **fields,
        }
        with current(TrialRun(**run)):
            opened.append(trial_class.open_controller(TrialRun(**run)))
        return opened[-1]

    yield open_
    for controller in opened:
        controller.close()


@pytest.fixture
def resumed(open_trial: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Returns a function: what a trial that goes on after it was saved shows, and its copy."""

    def both(
        trial_class: type,
        before: int = 7,
        after: int = 7,
        batch: Callable[[Any], Any] = lambda trial: trial.train(1)["loss"],
        **options: Any,
    ) -> tuple[list[Any], list[Any]]:
        straight = open_trial(trial_class, **options)
        seen = [batch(straight) for _ in range(before)]
        straight.save(str(tmp_path))
        expected = seen + [batch(straight) for _ in range(after)]
        at = {"batches_trained": before, "checkpoint_dir": str(tmp_path)}
        restored = open_trial(trial_class, **options, **at)
        return expected, seen + [batch(restored) for _ in range(after)]

    return both


@pytest.fixture
def eager_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turns on again what code of TensorFlow 1 turns off for the process."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    local = context.context()._thread_local_data
    for owner, name in ((context, "default_execution_mode"), (local, "is_eager")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    yield
    monkeypatch.undo()
    tf.compat.v1.enable_v2_behavior()


def make_fn_args(directory: Path, **fields: Any) -> Any:
    """Returns what `run_fn` needs of its argument."""
    (directory / "run").mkdir(parents=True, exist_ok=True)
    return types.SimpleNamespace(
        **{
            "hyperparameters": None,
            "schema_path": None,
            "transform_graph_path": None,
            "model_run_dir": str(directory / "run"),
            "checkpoint_dir": str(directory / "checkpoints"),
            "serving_model_dir": str(directory / "Format-Serving"),
            **fields,
        }
    )


def ported(original: Path, directory: Path, tensorflow: str = "tf1 as tf") -> Path:
    """Writes a file with its import lines changed; one for Keras keeps TensorFlow as it is."""
    source = original.read_text()
    own = {"import tensorflow as tf": f"from generic_trainer.estimator import {tensorflow}"}
    for old, new in {**IMPORTS, **own}.items():
        if not (old == "import tensorflow as tf" and "keras" in original.stem):
            source = source.replace(old, new)
    path = directory / original.name
    path.write_text(source)
    return path


def trials_of(fn_args: Any) -> Any:
    """Returns what `trials.json` says."""
    return json.loads(Path(fn_args.model_run_dir, "trials.json").read_text())


def run_module_file(path: Path, **fields: Any) -> Any:
    """Runs a module file as the executor does; returns the argument of its `run_fn`."""
    fn_args = make_fn_args(path.parent, **fields)
    code = bundle_module_file(str(path), str(path.parent / "bundle"), may_define=may_define)
    with run_fn_of(code) as run_fn:
        run_fn(fn_args)
    return fn_args
