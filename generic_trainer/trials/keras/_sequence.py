"""Keras Sequences, read ahead and in order, and arrays as a Sequence of batches."""

import collections
import concurrent.futures
import logging
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials.errors import CheckFailedError

_logger = logging.getLogger(__name__)


class SequenceAdapter:
    """A Keras Sequence, and how it is read.

    Batches come in order. With one thread, or none, the global random generators of Python and
    NumPy are noted as they were after each batch, so that the draws of a Sequence can go on
    from a checkpoint although batches are read ahead.

    Source: `determined.keras.SequenceAdapter` of Determined 0.12, and Keras's OrderedEnqueuer.
    """

    def __init__(
        self,
        data: Any,
        use_multiprocessing: bool = False,
        workers: int = 1,
        max_queue_size: int = 10,
    ) -> None:
        """Takes a Sequence.

        Args:
            data: has `__len__`, `__getitem__` and `on_epoch_end`.
            use_multiprocessing: has no effect: threads read. A process with TensorFlow cannot be
                copied safely.
            workers: how many threads read; 0 is the calling thread.
            max_queue_size: batches that are read ahead.

        Raises:
            ConfigurationError: the Sequence has no batch; also a ValueError.
        """
        self._data = data
        self._length = len(data)
        if not self._length:
            raise ConfigurationError(
                "tf.keras.utils.Sequence objects should have a non-zero length, but "
                f"{type(data).__name__} has no batch."
            )
        if use_multiprocessing:
            _logger.warning("A Sequence is read by %d threads, not by processes.", workers)
        self._workers = workers
        self._seed = np.random.get_state()[1][0]
        self._queue_size = max(1, max_queue_size)
        self._iterator: Iterator[Any] | None = None
        self._pool: Any = None
        self._ordered: collections.deque[Any] = collections.deque()  # what the pool reads

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return self._length

    def start(self, batch_offset: int = 0, is_validation: bool = False) -> None:
        """Starts to read.

        Args:
            batch_offset: batches that are left out.
            is_validation: whether to end after one pass; else passes follow each other for ever.
        """
        noted = self.noted(batch_offset, is_validation=is_validation)
        self._iterator = (batch for batch, _ in noted)

    def noted(self, offset: int = 0, *, is_validation: bool = False) -> Iterator[tuple[Any, Any]]:
        """Starts to read, as `start` does.

        Returns:
            Each batch with the state of Python's and NumPy's generators after it; None for a state
            that is unknown.
        """
        self.stop()
        return self._batches(offset, is_validation)

    def skip_epochs(self, batches: int) -> None:
        """Tells the Sequence of the epochs that ended before the last of the batches trained on."""
        for number in range(max(0, batches - 1) // self._length):
            self._end_epoch(number)

    def get_iterator(self) -> Iterator[Any]:
        """Returns the iterator over batches, from `start` on.

        Raises:
            ConfigurationError: it was not started.
        """
        if self._iterator is None:
            raise ConfigurationError("Call start() before get_iterator()")
        return self._iterator

    def wait(self) -> None:
        """Returns when all batches that are on order have been read."""
        concurrent.futures.wait(tuple(self._ordered))

    def stop(self, timeout: float | None = None) -> None:
        """Stops to read.

        Args:
            timeout: how long, in seconds, to wait for pending reads; None is until they are done.
        """
        if self._pool is not None:
            self._pool.shutdown(wait=timeout is None or timeout > 0, cancel_futures=True)
        self._pool = self._iterator = None

    def _batches(self, offset: int, is_validation: bool) -> Iterator[tuple[Any, Any]]:
        epoch, offset = divmod(offset, self._length)
        if epoch and not offset:
            self._end_epoch(epoch - 1)
        yield from self._epoch(offset)
        while not is_validation:
            self._end_epoch(epoch)
            epoch += 1
            yield from self._epoch(0)

    def _end_epoch(self, number: int) -> None:
        """Calls `on_epoch_end`, whose draws depend on the number of the epoch alone.

        After a restart they are repeated without those of the batches in between.
        """
        python = random.getstate()
        numpy = np.random.get_state()
        random.seed(f"{self._seed} {number}")
        np.random.seed([self._seed, number])
        self._data.on_epoch_end()
        random.setstate(python)
        np.random.set_state(numpy)

    def _epoch(self, first: int) -> Iterator[tuple[Any, Any]]:
        if self._workers == 0:  # what it opens may belong to its thread, as SQLite's connections do
            yield from map(self._read, range(first, self._length))
            return
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(self._workers, "sequence")
        waiting = self._ordered = collections.deque()
        for index in range(first, self._length):
            if len(waiting) >= self._queue_size:
                yield waiting.popleft().result()
            waiting.append(self._pool.submit(self._read, index))
        while waiting:
            yield waiting.popleft().result()

    def _read(self, index: int) -> tuple[Any, Any]:
        """Returns a batch, and the generators after it where the order of draws is known."""
        batch = self._data[index]
        return batch, (random.getstate(), np.random.get_state()) if self._workers <= 1 else None


KerasDataAdapter = SequenceAdapter  # the name in the first release of 0.12


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
        self._size = batch_size
        self._drop = drop_leftovers
        counts = {len(array) for array in tf.nest.flatten(self._parts)}
        if len(counts) > 1:
            raise CheckFailedError(
                f"x, y and sample weights must have as many records each, but have {sorted(counts)}"
            )
        [self._count] = counts
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
