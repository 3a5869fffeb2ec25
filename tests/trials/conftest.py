"""Runs experiments without a pipeline around them."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._entry_points import may_define, run_fn_of
from generic_trainer.trials import run_fn_from_trial
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
    "import tensorflow as tf": "from generic_trainer.estimator import tf1 as tf",
    "import determined as det": "import generic_trainer.trials as det",
    "from determined": "from generic_trainer.trials",
    "from pedl.frameworks.tensorflow import": "from generic_trainer.trials.tensorflow import",
    "from pedl.trial import": "from generic_trainer.trials import",
    "from pedl.util import": "from generic_trainer.trials import",
}


@pytest.fixture
def run_experiment(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Returns a function that runs an experiment and returns what `trials.json` says."""

    def run(trial_class: type, config: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
        run_fn_from_trial(trial_class)(make_fn_args(tmp_path, custom_config=config, **fields))
        return json.loads((tmp_path / "run" / "trials.json").read_text())

    return run


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


def ported(original: Path, directory: Path) -> Path:
    """Writes a file with its import lines changed; one for Keras keeps TensorFlow as it is."""
    source = original.read_text()
    for old, new in IMPORTS.items():
        if not (old == "import tensorflow as tf" and "keras" in original.stem):
            source = source.replace(old, new)
    path = directory / original.name
    path.write_text(source)
    return path


def run_module_file(path: Path, **fields: Any) -> Any:
    """Runs a module file as the executor does; returns the argument of its `run_fn`."""
    fn_args = make_fn_args(path.parent, **fields)
    code = bundle_module_file(str(path), str(path.parent / "bundle"), may_define=may_define)
    with run_fn_of(code) as run_fn:
        run_fn(fn_args)
    return fn_args
