"""Arrays as a Keras Sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from generic_trainer.trials.errors import CheckFailedError

__all__ = ["ArrayLikeAdapter", "InMemorySequence", "_ArrayLikeAdapter"]


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
        weights = () if sample_weights is None else (sample_weights,)
        self._parts = (x, y, *weights)
        self._size, self._drop = batch_size, drop_leftovers
        counts = {len(array) for part in self._parts for array in _arrays(part)}
        if len(counts) > 1:
            raise CheckFailedError(
                f"x, y and sample weights must have as many records each, but have {sorted(counts)}"
            )
        self._count = counts.pop()
        if self._count < batch_size:
            raise CheckFailedError(
                f"Batch size is too large for the input data: it is {batch_size}, and there are "
                f"{self._count} records"
            )

    def __len__(self) -> int:
        """Returns the number of batches."""
        whole, left = divmod(self._count, self._size)
        return whole + (1 if left and not self._drop else 0)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Returns the batch (x, y) or (x, y, sample_weight)."""
        records = slice(index * self._size, (index + 1) * self._size)
        return tuple(_sliced(part, records) for part in self._parts)


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


_ArrayLikeAdapter = ArrayLikeAdapter


def _arrays(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return list(part.values())
    return list(part) if isinstance(part, (list, tuple)) else [part]


def _sliced(part: Any, records: slice) -> Any:
    if isinstance(part, Mapping):
        return {name: array[records] for name, array in part.items()}
    if isinstance(part, (list, tuple)):
        return [array[records] for array in part]
    return part[records]
