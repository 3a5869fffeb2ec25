"""`context.experimental`: a cache of datasets, which are computed once and read ever after.

::

    def build_training_data_loader(self):
        @self.context.experimental.cache_train_dataset("flowers", "v1", shuffle=True)
        def make_dataset():
            return read_and_resize()              # records, not batches

        return make_dataset().batch(self.context.get_per_slot_batch_size())

Source: `context.experimental` of Determined 0.12 and 0.13, on yogadl.

`tf.data.Dataset.save` and `snapshot` write files that are read from their beginning; an order drawn
anew for each epoch, and a start in mid-epoch, need any record at once. A store is a directory:

=============  ==================================================================================
`records`      the records, one after another: their components, each by `tf.io.serialize_tensor`
`offsets.npy`  int64 [N + 1], where each of the N records begins, and the end
`spec/`        an empty dataset of the same element spec, by `tf.data.Dataset.save`
=============  ==================================================================================
"""

from __future__ import annotations

import dataclasses
import functools
import os
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import copy_tree, gfile, is_remote
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import distributed
from generic_trainer.trials._config import DEFAULT_DATA_DIR, data_layer_dir
from generic_trainer.trials._context import BatchSizes
from generic_trainer.trials._process import share_of_dataset
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.errors import CheckFailedError

Maker = Callable[..., tf.data.Dataset]

_RECORDS, _OFFSETS, _SPEC = "records", "offsets.npy", "spec"
_quoted = functools.partial(urllib.parse.quote, safe="")

# Records that one call into Python reads: enough for the call to cost next to nothing.
_BLOCK = 64


class _NoDataLayer(ConfigurationError, KeyError):
    """The original raised KeyError."""

    __str__ = Exception.__str__


@dataclasses.dataclass(eq=False)
class _Passes:
    """The records that each pass over a cached dataset reads, in their order.

    Each of several workers reads every so many-th of them.
    """

    total: int
    seed: int
    shuffle: bool
    rank: int = 0
    workers: int = 1
    same_order: bool = False
    epoch: int = 0  # the next pass
    start: int = 0  # the record that it begins with; later passes begin with the first

    @property
    def count(self) -> int:
        """Records that this process reads in a pass."""
        return len(range(self.rank, self.total, self.workers))

    def __call__(self) -> np.ndarray:
        epoch, start = self.epoch, self.start
        self.epoch, self.start = epoch + 1, 0
        order = np.arange(self.total)
        if self.shuffle:
            seed = self.seed + (0 if self.same_order else epoch)
            order = np.random.RandomState(seed % 2**32).permutation(self.total)
        return order[self.rank :: self.workers][start:].astype(np.int64)


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

        def passes_over(count: int) -> _Passes:
            # Horovod's shards are of equal size; what is left over is dropped.
            total = count - count % self._run.slots
            passes = self._passes(total, shuffle)
            passes.same_order = skip_shuffle_at_epoch_end
            self._training = passes
            return passes

        return self._decorator(dataset_id, f"{dataset_version}_train", passes_over)

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
        return self._decorator(
            dataset_id,
            f"{dataset_version}_val",
            lambda count: self._passes(count, shuffle),
        )

    def _passes(self, total: int, shuffle: bool) -> _Passes:
        if self._whole:
            return _Passes(total, self._run.seed, shuffle)
        return _Passes(total, self._run.seed, shuffle, distributed.rank(), self._run.workers)

    @property
    def _whole(self) -> bool:
        """Whether this process reads all records: it is alone, or batches are divided."""
        return self._run.workers == 1 or self._sizes.per_slot == self._sizes.of_all

    def resume(self, dataset: tf.data.Dataset) -> None:
        """Sets the record to start at to where the batches of a dataset end that were trained on.

        Only the cached dataset, batched, tells whether an epoch's last batch is partial or dropped.
        """
        passes, size = self._training, self._sizes.per_slot
        if passes is None or not passes.count:
            return
        first = tf.nest.flatten(dataset.element_spec)[0]
        drops = first.shape.rank and tf.compat.dimension_value(first.shape[0]) is not None
        per_epoch = passes.count // size if drops else -(-passes.count // size)
        epoch, batch = divmod(self._batches, max(1, per_epoch))
        passes.epoch, passes.start = epoch, batch * size

    @property
    def _batches(self) -> int:
        """Batches that this process took of the training data: one for each slot and step."""
        per_step = self._sizes.of_all // self._sizes.per_slot
        return self._run.batches_trained * (per_step if self._whole else self._run.slots_here)

    def _decorator(
        self, name: str, version: str, passes_over: Callable[[int], _Passes]
    ) -> Callable[[Maker], Maker]:
        def decorate(make: Maker) -> Maker:
            @functools.wraps(make)
            def cached(*args: Any, **kwargs: Any) -> tf.data.Dataset:
                store = self._open(name, version, lambda: _checked(make(*args, **kwargs), make))
                dataset = store.read(passes_over(store.count))
                return dataset if self._whole else share_of_dataset(dataset, self._run, False)

            return cached

        return decorate

    def _open(self, name: str, version: str, make: Maker) -> _RecordStore:
        root, key = self._root(), os.path.join(_quoted(name), _quoted(version))
        directory = os.path.join(root, key)
        if not _is_complete(directory):
            _aside(lambda: _write_store(make(), directory))
        if is_remote(root):
            local = os.path.join(os.path.expanduser(DEFAULT_DATA_DIR), _quoted(root), key)
            if not _is_complete(local):
                copy_tree(directory, local, last=_OFFSETS)
            directory = local
        store: _RecordStore = _aside(lambda: _RecordStore(directory))
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


class _RecordStore:
    """Records in a local directory, to be read in any order; see the module."""

    def __init__(self, directory: str) -> None:
        self._offsets = np.load(os.path.join(directory, _OFFSETS))
        self.count = len(self._offsets) - 1
        path = os.path.join(directory, _RECORDS)
        self._records = np.memmap(path, np.uint8, "r") if os.path.getsize(path) else b""
        self.element_spec = tf.data.Dataset.load(os.path.join(directory, _SPEC)).element_spec

    def read(self, next_order: Callable[[], np.ndarray]) -> tf.data.Dataset:
        """Returns a dataset that asks for an order, int64 [M], each time that it is iterated."""
        order = tf.data.Dataset.from_tensors(0).flat_map(
            lambda _: tf.data.Dataset.from_tensor_slices(_call(next_order, tf.int64))
        )
        blocks = order.batch(_BLOCK).map(lambda indices: _call(self._block, tf.string, indices))
        return blocks.unbatch().map(self._parse, num_parallel_calls=tf.data.AUTOTUNE)

    def _block(self, indices: np.ndarray) -> np.ndarray:
        starts, ends = self._offsets[indices], self._offsets[indices + 1]
        spans = map(slice, starts, ends)
        return np.array([bytes(self._records[span]) for span in spans], object)

    def _parse(self, record: tf.Tensor) -> Any:
        parts = tf.io.parse_tensor(record, tf.string)
        specs = tf.nest.flatten(self.element_spec, expand_composites=True)
        tensors = [
            tf.ensure_shape(tf.io.parse_tensor(parts[index], spec.dtype), spec.shape)
            for index, spec in enumerate(specs)
        ]
        return tf.nest.pack_sequence_as(self.element_spec, tensors, expand_composites=True)


def _write_store(dataset: tf.data.Dataset, directory: str) -> None:
    """Writes the records of a dataset, which is iterated once, into a directory, local or remote.

    A reader sees all of the store or none of it. If another process has written it meanwhile, that
    one stays.
    """
    parent = None if is_remote(directory) else os.path.dirname(directory)
    if parent is not None:
        os.makedirs(parent, exist_ok=True)
    with ScratchFolder(".unfinished-", parent) as scratch:
        store = os.path.join(scratch, "store")
        os.makedirs(store)
        offsets = [0]
        with open(os.path.join(store, _RECORDS), "wb") as file:
            for record in dataset.map(_serialized, num_parallel_calls=tf.data.AUTOTUNE):
                offsets.append(offsets[-1] + file.write(record.numpy()))
        dataset.take(0).save(os.path.join(store, _SPEC))
        np.save(os.path.join(store, _OFFSETS), np.array(offsets, np.int64))
        if is_remote(directory):
            copy_tree(store, directory, last=_OFFSETS)
        elif not os.path.exists(directory):
            os.rename(store, directory)


def _is_complete(directory: str) -> bool:
    return bool(gfile().exists(os.path.join(directory, _OFFSETS)))


def _serialized(*record: Any) -> tf.Tensor:
    parts = tf.nest.flatten(record, expand_composites=True)
    return tf.io.serialize_tensor(tf.stack([tf.io.serialize_tensor(part) for part in parts]))


def _call(function: Callable[..., np.ndarray], dtype: tf.DType, *arguments: Any) -> tf.Tensor:
    made = tf.numpy_function(function, arguments, dtype)
    made.set_shape([None])
    return made
