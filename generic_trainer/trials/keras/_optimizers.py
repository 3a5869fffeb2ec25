"""The state of optimizers, of Keras 2, Keras 3 and Keras 2's legacy ones, in an HDF5 file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import gfile
from generic_trainer.errors import TrainingError

__all__ = ["read_optimizers", "write_optimizers"]


def write_optimizers(path: str, optimizers: Sequence[Any]) -> None:
    """Writes a group for each optimizer, and in it a dataset for each variable, by number."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for number, optimizer in enumerate(optimizers):
            group = file.create_group(f"optimizer_{number}")
            for index, variable in enumerate(_variables(optimizer)):
                group.create_dataset(str(index), data=np.asarray(_plain(variable)))
    with gfile().GFile(path, "wb") as target:
        target.write(buffer.getvalue())


def read_optimizers(path: str, optimizers: Sequence[Any]) -> None:
    """Gives the optimizers' variables the values that were written.

    Args:
        path: the file.
        optimizers: those that were written; their variables must have been made.

    Raises:
        TrainingError: they are others.
    """
    import h5py

    with gfile().GFile(path, "rb") as source, h5py.File(io.BytesIO(source.read()), "r") as file:
        for number, optimizer in enumerate(optimizers):
            group, variables = file.get(f"optimizer_{number}") or {}, _variables(optimizer)
            values = [group[str(index)][()] for index in range(len(group))]
            saved, found = [np.shape(v) for v in values], [tuple(v.shape) for v in variables]
            if saved != found:
                raise TrainingError(
                    f"The checkpoint {path} does not fit optimizer {number}, "
                    f"{type(optimizer).__name__}: variables of shapes {saved} were saved, and it "
                    f"has {found}. Train what was saved, or delete the checkpoint to start afresh."
                )
            for variable, value in zip(variables, values, strict=True):
                _plain(variable).assign(value)


def _variables(optimizer: Any) -> list[Any]:
    found = optimizer.variables
    variables = list(found() if callable(found) else found)
    rate = getattr(optimizer, "learning_rate", None)  # Keras 2 does not list it
    if isinstance(rate, tf.Variable) and all(rate is not variable for variable in variables):
        variables.append(rate)
    return variables


def _plain(variable: Any) -> Any:
    """Returns TensorFlow's variable within one of Keras 3."""
    return variable if isinstance(variable, tf.Variable) else variable.value
