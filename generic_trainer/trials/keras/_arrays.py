"""NumPy arrays, alone or in lists and dicts, as tensors or as a Keras Sequence of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.trials.errors import CheckFailedError, InvalidDataTypeException


def as_tensors(data: tuple[Any, ...], loader: str) -> tuple[Any, ...]:
    """Returns (x, y) or (x, y, sample_weight) as tensors [N, ...], floats as Keras has them.

    Raises:
        InvalidDataTypeException: they are no arrays, or not two or three.
        CheckFailedError: they differ in N.
    """
    if len(data) not in (2, 3):
        raise InvalidDataTypeException(
            f"{loader}: a tuple must be (x, y) or (x, y, sample_weight), but it has {len(data)} "
            "items"
        )
    for name, part in zip(("x", "y", "sample_weight"), data, strict=False):
        _check(part, name, loader, may_be_dict=name == "x")
    parts = [_arrays(part) for part in data]
    parts = [part[0] if isinstance(part, list) and len(part) == 1 else part for part in parts]
    with tf.device("CPU:0"):  # of all data, one batch at a time goes to an accelerator
        tensors = tuple(
            tf.nest.map_structure(tf.convert_to_tensor, standardized(part)) for part in parts
        )
    _records_of(tensors, f"{loader}: x, y and sample_weight")
    return tensors


def standardized(batch: Any) -> Any:
    """Returns nested arrays, lists as tuples and floats in Keras' type, float32 by default."""
    if isinstance(batch, Mapping):
        return {name: standardized(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return tuple(standardized(part) for part in batch)
    if isinstance(batch, tf.Tensor):
        return batch
    array = np.asarray(batch)
    if array.dtype == object:  # of texts; pandas has them so
        return array.astype(str) if array.size and isinstance(array.flat[0], str) else array
    if issubclass(array.dtype.type, np.floating):
        return array.astype(tf.keras.backend.floatx(), copy=False)
    return array


class ArrayLikeAdapter(tf.keras.utils.Sequence):  # type: ignore[misc]
    """A Sequence of arrays' records, in order; the last batch may be partial.

    A data loader that returns (x, y) has them trained on faster.

    Source: `determined.keras._ArrayLikeAdapter` of Determined 0.12 and 0.13, which its examples of
    scripts use.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        batch_size: int,
        sample_weights: Any = None,
        drop_leftovers: bool = False,
    ) -> None:
        """Takes arrays.

        Args:
            x: an array [N, ...], or a list or dict of arrays.
            y: likewise.
            batch_size: records in a batch.
            sample_weights: an array [N].
            drop_leftovers: whether to leave out a last batch that is partial.

        Raises:
            CheckFailedError: they differ in N, or N is below the batch size.
        """
        super().__init__()
        self._parts = (x, y) if sample_weights is None else (x, y, sample_weights)
        self._size, self._drop = batch_size, drop_leftovers
        self._count = _records_of(self._parts, "x, y and sample weights")
        if self._count < batch_size:
            raise CheckFailedError(
                f"Batch size is too large for the input data: it is {batch_size}, and there are "
                f"{self._count} records"
            )

    def __len__(self) -> int:
        """Returns the number of batches."""
        return self._count // self._size if self._drop else -(-self._count // self._size)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Returns the batch (x, y) or (x, y, sample_weight)."""
        records = slice(index * self._size, (index + 1) * self._size)
        return tf.nest.map_structure(  # type: ignore[no-any-return]
            lambda array: array[records], self._parts
        )


class InMemorySequence(ArrayLikeAdapter):
    """The same, under the names of the first release of 0.12.

    Source: `determined.keras.InMemorySequence` of Determined 0.12.0.
    """

    def __init__(
        self,
        data: Any,
        labels: Any,
        batch_size: int,
        sample_weight: Any = None,
        drop_leftovers: bool = False,
    ) -> None:
        """Takes arrays; see `ArrayLikeAdapter`."""
        super().__init__(data, labels, batch_size, sample_weight, drop_leftovers)


def _records_of(parts: tuple[Any, ...], subject: str) -> int:
    """Returns N, which must be the same for all arrays."""
    counts = {len(array) for array in tf.nest.flatten(parts)}
    if len(counts) > 1:
        raise CheckFailedError(
            f"{subject} must have as many records each, but have {sorted(counts)}"
        )
    return counts.pop()


def _check(part: Any, name: str, loader: str, *, may_be_dict: bool) -> None:
    if isinstance(part, Mapping) and may_be_dict:
        leaves = list(part.values())
    else:
        leaves = list(part) if isinstance(part, list) else [part]
    wrong = [type(leaf).__name__ for leaf in leaves if not _is_array_like(leaf)]
    if wrong or not leaves:
        kinds = "an array, a list of arrays" + (" or a dict of arrays" if may_be_dict else "")
        actual = type(part).__name__ + (f" of {wrong[0]}" if leaves != [part] and wrong else "")
        raise InvalidDataTypeException(f"{loader}: {name} must be {kinds}, but got {actual}")


def _arrays(part: Any) -> Any:
    """Returns what `_check` let pass with an array in the place of what NumPy makes one of."""
    if isinstance(part, Mapping):
        return {name: _arrays(leaf) for name, leaf in part.items()}
    if isinstance(part, list):
        return [_arrays(leaf) if not isinstance(leaf, list) else np.asarray(leaf) for leaf in part]
    return part if getattr(part, "shape", ()) else np.asarray(part)


def _is_array_like(value: Any) -> bool:
    """Whether a value is an array [N, ...], or such as NumPy makes one of: a range, a Series."""
    if getattr(value, "shape", ()):
        return True
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not (is_list or hasattr(value, "__array__")):
        return False
    try:
        array = np.asarray(value)
    except ValueError:  # of parts of different sizes
        return False
    return bool(array.ndim) and array.dtype != object
