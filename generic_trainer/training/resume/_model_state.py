"""The state of a compiled model: all that a training step changes, and the epoch to start at."""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.files import gfile
from generic_trainer._core.keras import is_keras_3

_STATE = "model"
_BUILD_CONFIG = "build_config.json"


class ModelState:
    """The variables of a compiled model, of its optimizer, metrics and random generators.

    Keras 3 lists them; Keras 2 leaves some to `tf.train.Checkpoint`, which follows attributes.
    """

    def __init__(self, model: Any) -> None:
        """Looks at a model, all of whose variables must have been made."""
        groups: dict[str, Any] = {"model": model}
        if is_keras_3(model):
            groups = {
                "weights": _values(model.variables),
                "optimizer": _values(model.optimizer.variables),
                "metrics": _values(model.metrics_variables),
            }
        else:
            groups["metrics"] = list(model.metrics)
            groups["steps"] = internals.KERAS_2_TRAIN_COUNTER.of(model)
        self._checkpoint = tf.train.Checkpoint(**groups)
        self._build_config = model.get_build_config()

    def write(self, directory: str) -> None:
        """Saves the state."""
        self._checkpoint.write(os.path.join(directory, _STATE))
        with gfile().GFile(os.path.join(directory, _BUILD_CONFIG), "w") as file:
            json.dump(self._build_config, file)

    def read(self, directory: str) -> None:
        """Restores the state.

        Raises:
            AssertionError: the model has a variable that was not saved.
            ValueError: a variable was saved with another shape.
        """
        self._checkpoint.read(os.path.join(directory, _STATE)).assert_existing_objects_matched()

    @staticmethod
    def read_weights(model: Any, directory: str) -> None:
        """Restores what the model is made of, at once or when a variable is made.

        A model that has no variables yet, because it has seen no data, is built first.
        """
        if not model.built:
            with gfile().GFile(os.path.join(directory, _BUILD_CONFIG)) as file:
                model.build_from_config(json.load(file) or {})
        groups = {"weights": _values(model.variables)} if is_keras_3(model) else {"model": model}
        tf.train.Checkpoint(**groups).read(os.path.join(directory, _STATE)).expect_partial()


def set_first_epoch(model: Any, epoch: int | None) -> None:
    """Makes the `fit` that has just begun start at an epoch, as Keras's BackupAndRestore does.

    Args:
        model: the model that is trained.
        epoch: number of the epoch, from 0; None for what the arguments of `fit` say.
    """
    if is_keras_3(model):
        internals.KERAS_3_INITIAL_EPOCH.set(model, epoch)
    else:
        state = None if epoch is None else _FirstEpoch(epoch)
        internals.KERAS_2_TRAINING_STATE.set(model, state)


class _FirstEpoch:
    """What Keras 2 asks for the epoch and the step to start at."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self._epoch, 0


def _values(variables: Any) -> list[Any]:
    return [variable.value for variable in variables]
