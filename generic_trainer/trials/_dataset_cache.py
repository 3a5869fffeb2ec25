"""`context.experimental`: a cache of datasets, which are computed once and read ever after.

::

    def build_training_data_loader(self):
        @self.context.experimental.cache_train_dataset("flowers", "v1", shuffle=True)
        def make_dataset():
            return read_and_resize()              # records, not batches

        return make_dataset().batch(self.context.get_per_slot_batch_size())

Source: `context.experimental` of Determined 0.12 and 0.13, on yogadl.

For the author of another API's context::

    self.experimental = DatasetCache(run, batch_sizes, managed_training=...)
    ...
    if self.experimental.caches_training:                     # in place of skipping batches
        self.experimental.resume(training_dataset)            # before it is iterated
    training_dataset = training_dataset.repeat()
"""

from __future__ import annotations

import functools
import os
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import is_remote
from generic_trainer.errors import ConfigurationError
from generic_trainer.trials._config import DEFAULT_DATA_DIR, data_layer_dir
from generic_trainer.trials._record_store import RecordStore, copy_store, is_complete, write_store
from generic_trainer.trials._trial import BatchSizes, TrialRun
from generic_trainer.trials.errors import CheckFailedError

__all__ = ["DatasetCache"]

Maker = Callable[..., tf.data.Dataset]


class _NoDataLayer(ConfigurationError, KeyError):
    """The original raised KeyError."""

    __str__ = Exception.__str__


class _Passes:
    """Which records each pass over a cached dataset reads.

    Attributes:
        epoch: the next pass, from 0.
        start: the record of that pass to begin with; later passes begin with the first.
    """

    def __init__(self, count: int, seed: int, *, shuffle: bool, same_order: bool) -> None:
        self.count, self.epoch, self.start = count, 0, 0
        self._seed, self._shuffle, self._same_order = seed, shuffle, same_order

    def go_to(self, record: int, per_epoch: int) -> None:
        """Begins at a record, counted from the start of training."""
        self.epoch, self.start = divmod(record, per_epoch) if per_epoch else (0, 0)

    def __call__(self) -> np.ndarray:
        epoch, start = self.epoch, self.start
        self.epoch, self.start = epoch + 1, 0
        if not self._shuffle:
            return np.arange(start, self.count)
        seed = self._seed + (0 if self._same_order else epoch)
        return np.random.RandomState(seed % 2**32).permutation(self.count).astype(np.int64)[start:]


class DatasetCache:
    """The decorators `cache_train_dataset` and `cache_validation_dataset`.

    1. A function is called when its key is first missed: `dataset_id`, `dataset_version` and
       whether it is for training. The same key with another function returns the old data.
    2. The experiment configuration's `data_layer` says where: `shared_fs` with
       `host_storage_path` (`~/data/determined` by default), or `s3` or `gcs` with `bucket` and
       `bucket_directory_path`, for which TensorFlow must have the file system and find the
       credentials in the environment.
    3. Shuffling is by record. The order of epoch e depends on the trial's seed + e alone.
    4. Training goes on, after a restart, at the record that comes next.
    """

    def __init__(
        self, run: TrialRun, batch_sizes: BatchSizes, *, managed_training: bool = True
    ) -> None:
        """Takes what decides the order of records, and where training stands."""
        self._run = run
        self._sizes = batch_sizes
        self._managed_training = managed_training
        self._training: _Passes | None = None
        self._used: set[str] = set()

    @property
    def caches_training(self) -> bool:
        """Whether the training data come from the cache."""
        return self._training is not None

    @property
    def is_used(self) -> bool:
        """Whether any data come from the cache."""
        return bool(self._used)

    def cache_train_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
    ) -> Callable[[Maker], Maker]:
        """Returns a decorator for the function that returns the training records.

        Args:
            dataset_id: name of the data.
            dataset_version: change it when the function returns something else.
            shuffle: whether to shuffle, record by record.
            skip_shuffle_at_epoch_end: whether to repeat the order of the first epoch.

        Raises:
            CheckFailedError: this context has a cached training dataset already.
        """
        if "train" in self._used:
            raise CheckFailedError(
                "cache_train_dataset can be used once in a trial, and was used before"
            )
        self._used.add("train")

        def decorate(make: Maker) -> Maker:
            @functools.wraps(make)
            def cached(*args: Any, **kwargs: Any) -> tf.data.Dataset:
                store = self._open(dataset_id, f"{dataset_version}_train", make, args, kwargs)
                # Horovod's shards are of equal size; what is left over is dropped.
                passes = _Passes(
                    store.count - store.count % self._run.slots,
                    self._run.seed,
                    shuffle=shuffle,
                    same_order=skip_shuffle_at_epoch_end,
                )
                self._training = passes
                passes.go_to(self._elements * self._sizes.per_slot, passes.count)
                return store.read(passes)

            return cached

        return decorate

    def cache_validation_dataset(
        self, dataset_id: str, dataset_version: str, shuffle: bool = False
    ) -> Callable[[Maker], Maker]:
        """Returns a decorator for the function that returns the validation records.

        Args:
            dataset_id: name of the data.
            dataset_version: change it when the function returns something else.
            shuffle: whether to shuffle, record by record.
        """
        self._used.add("validation")

        def decorate(make: Maker) -> Maker:
            @functools.wraps(make)
            def cached(*args: Any, **kwargs: Any) -> tf.data.Dataset:
                store = self._open(dataset_id, f"{dataset_version}_val", make, args, kwargs)
                return store.read(
                    _Passes(store.count, self._run.seed, shuffle=shuffle, same_order=False)
                )

            return cached

        return decorate

    def resume(self, dataset: tf.data.Dataset) -> None:
        """Sets the record to start at to where the batches of a dataset end that were trained on.

        Only the batches tell whether the last ones of an epoch are partial, or dropped.

        Args:
            dataset: the cached one, batched by the batch size per slot.
        """
        passes, size = self._training, self._sizes.per_slot
        if passes is None or not passes.count:
            return
        first = tf.nest.flatten(dataset.element_spec)[0]
        drops = first.shape.rank and first.shape[0] is not None
        per_epoch = passes.count // size if drops else -(-passes.count // size)
        epoch, batch = divmod(self._elements, max(1, per_epoch))
        passes.epoch, passes.start = epoch, batch * size

    @property
    def _elements(self) -> int:
        """Batches that were taken from the training data: one for each slot and step."""
        return self._run.batches_trained * (self._sizes.of_all // self._sizes.per_slot)

    def _open(self, name: str, version: str, make: Maker, args: Any, kwargs: Any) -> RecordStore:
        root, key = self._root(), os.path.join(_quoted(name), _quoted(version))
        directory = os.path.join(root, key)
        if not is_complete(directory):
            _aside(lambda: write_store(_checked(make(*args, **kwargs), make), directory))
        if is_remote(root):
            local = os.path.join(os.path.expanduser(DEFAULT_DATA_DIR), _quoted(root), key)
            if not is_complete(local):
                copy_store(directory, local)
            directory = local
        store: RecordStore = _aside(lambda: RecordStore(directory))
        # The function may have drawn random numbers, and is not called the next time.
        tf.random.set_seed(self._run.seed)
        return store

    def _root(self) -> str:
        layer = self._run.config.get("data_layer")
        if layer is None:
            if not self._managed_training:
                raise _NoDataLayer(
                    "The configuration has no data_layer, which says where to cache datasets: add "
                    "{'data_layer': {'type': 'shared_fs', 'host_storage_path': '/some/folder'}}"
                )
            layer = {"type": "shared_fs"}
        return data_layer_dir(layer)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _checked(dataset: Any, make: Maker) -> tf.data.Dataset:
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigurationError(
            f"{make.__name__} is decorated to be cached, so it must return a tf.data.Dataset, but "
            f"got {type(dataset).__name__}"
        )
    return dataset


def _aside(function: Callable[[], Any]) -> Any:
    """Calls a function in a thread of its own: eagerly also where a graph is being built."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()
