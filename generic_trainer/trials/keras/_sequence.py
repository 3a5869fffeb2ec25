"""A Keras Sequence, read ahead and in order, by threads or processes."""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from generic_trainer.errors import ConfigurationError

# The Sequence of a process that reads, set when it starts.
_sequence: Any = None


class SequenceAdapter:
    """A Keras Sequence, and how it is read.

    Batches come in order. With one thread, or none, the global random generators of Python and
    NumPy are noted as they were after each batch, so that what a Sequence draws from them can go on
    from a checkpoint although batches are read ahead.

    Attributes:
        generators: state of Python's and NumPy's generators after the last batch that was taken;
            None if it cannot be told.

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
            data: has `__len__` and `__getitem__`, and perhaps `on_epoch_end`.
            use_multiprocessing: whether to read in processes.
            workers: how many threads or processes read; 0 is the calling thread.
            max_queue_size: batches that are read ahead.

        Raises:
            ConfigurationError: there is no batch; also a ValueError.
        """
        self._data = data
        self._length = len(data)
        if not self._length:
            raise ConfigurationError(
                "tf.keras.utils.Sequence objects should have a non-zero length, but "
                f"{type(data).__name__} has no batch."
            )
        self._processes = use_multiprocessing and workers > 0
        self._workers = workers
        self._queue_size = max(1, max_queue_size)
        self._iterator: Iterator[Any] | None = None
        self._pool: Any = None
        self.generators: tuple[Any, Any] | None = None

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return self._length

    @property
    def is_exact(self) -> bool:
        """Whether one thread reads, so that the order of what it draws is known."""
        return not self._processes and self._workers <= 1

    def start(
        self,
        batch_offset: int = 0,
        is_validation: bool = False,
        shuffle_seed: int | None = None,
    ) -> None:
        """Starts to read.

        Args:
            batch_offset: batches that are left out.
            is_validation: whether to end after one pass; else passes follow each other for ever.
            shuffle_seed: what an order of batches is drawn by for each pass; None leaves them in
                order.
        """
        self.stop()
        self._iterator = self._batches(batch_offset, is_validation, shuffle_seed)

    def skip_epochs(self, batches: int) -> None:
        """Tells the Sequence of the epochs that ended before the last of the batches trained on."""
        for _ in range(max(0, batches - 1) // self._length):
            self._end_epoch()

    def get_iterator(self) -> Iterator[Any]:
        """Returns the iterator over batches, from `start` on.

        Raises:
            ConfigurationError: it was not started.
        """
        if self._iterator is None:
            raise ConfigurationError("Call start() before get_iterator()")
        return self._iterator

    def stop(self, timeout: float | None = None) -> None:
        """Stops to read.

        Args:
            timeout: how long, in seconds, to wait for what is being read; None is until it is done.
        """
        if self._pool is not None:
            self._pool.shutdown(wait=timeout is None or timeout > 0, cancel_futures=True)
        self._pool = self._iterator = None

    def _batches(self, offset: int, is_validation: bool, seed: int | None) -> Iterator[Any]:
        epoch, offset = divmod(offset, self._length)
        if epoch and not offset:
            self._end_epoch()
        while True:
            order: Sequence[int] = range(self._length)
            if seed is not None:
                generator = np.random.RandomState((seed + epoch) % 2**32)
                order = generator.permutation(self._length).tolist()
            yield from self._epoch(order[offset:])
            if is_validation:
                return
            epoch, offset = epoch + 1, 0
            self._end_epoch()

    def _epoch(self, indices: Sequence[int]) -> Iterator[Any]:
        if self._workers == 0:
            for index in indices:
                yield self._taken(_read(self._data, index, self.is_exact))
            return
        # Processes start anew in each epoch: they have to see what on_epoch_end has changed.
        if self._processes or self._pool is None:
            self._open_pool()
        waiting: collections.deque[Any] = collections.deque()
        for index in indices:
            if len(waiting) >= self._queue_size:
                yield self._taken(waiting.popleft().result())
            read = (_read_in_process,) if self._processes else (_read, self._data)
            waiting.append(self._pool.submit(*read, index, self.is_exact))
        while waiting:
            yield self._taken(waiting.popleft().result())

    def _open_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        if self._processes:
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._workers,
                mp_context=multiprocessing.get_context("fork"),
                initializer=_start_process,
                initargs=(self._data,),
            )
        else:
            self._pool = concurrent.futures.ThreadPoolExecutor(
                self._workers, thread_name_prefix="sequence"
            )

    def _taken(self, read: tuple[Any, Any]) -> Any:
        batch, self.generators = read
        return batch

    def _end_epoch(self) -> None:
        if hasattr(self._data, "on_epoch_end"):
            self._data.on_epoch_end()


KerasDataAdapter = SequenceAdapter  # the name in the first release of 0.12


def _read(data: Any, index: int, notes_generators: bool) -> tuple[Any, Any]:
    batch = data[index]
    return batch, (random.getstate(), np.random.get_state()) if notes_generators else None


def _start_process(data: Any) -> None:
    global _sequence
    _sequence = data


def _read_in_process(index: int, notes_generators: bool) -> tuple[Any, Any]:
    return _read(_sequence, index, notes_generators)
