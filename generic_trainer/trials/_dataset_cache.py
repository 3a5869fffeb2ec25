"""`context.experimental`: a cache of datasets, which are computed once and read ever after.

::

    def build_training_data_loader(self):
        @self.context.experimental.cache_train_dataset("flowers", "v1", shuffle=True)
        def make_dataset():
            return read_and_resize()              # records, not batches

        return make_dataset().batch(self.context.get_per_slot_batch_size())

Source: `context.experimental` of Determined 0.12 and 0.13, on yogadl.

The records are written by `tf.data.Dataset.save`, and read by its `load`. The file `stored` of
a key's directory, written last, has the name of their directory.
"""

import functools
import logging
import os
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer._core.files import gfile, read_whole, write_whole
from generic_trainer.training import distributed
from generic_trainer.trials._config import directory_of
from generic_trainer.trials.errors import CheckFailedError, InvalidDataTypeException

Maker = Callable[..., tf.data.Dataset]

_STORED = "stored"
# Records in the buffer that shuffles, unless more fit into so many bytes.
_MOST_SHUFFLED = 10_000
_MOST_BYTES = 2**30
_logger = logging.getLogger(__name__)
_quoted = functools.partial(urllib.parse.quote, safe="")


class DatasetCache:
    """The decorators `cache_train_dataset` and `cache_validation_dataset`.

    1. A function is called when its key is first missed: `dataset_id`, `dataset_version` and
       whether it is for training. The same key with another function returns the old data.
    2. The place is the experiment configuration's `data_layer`: `shared_fs` with
       `host_storage_path` (`~/data/determined` by default), or `s3` or `gcs` with `bucket` and
       `bucket_directory_path`, for which TensorFlow must have the file system and find the
       credentials in the environment.
    3. Shuffling is by record, with the trial's seed, in another order in each epoch. Of more than
       10,000 records that are more than 1 GiB, it takes the next one at random from a window.
    4. After a restart, training goes on with the record that comes next.
    """

    def __init__(self, context: Any) -> None:
        """Takes the `TrialContext` that it is an attribute of."""
        self._context = context
        self.used: set[str] = set()

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
        if "train" in self.used:
            raise CheckFailedError("cache_train_dataset can be used once in a trial")
        # Horovod's shards are of equal size; a rest of the records is dropped.
        slots = self._context.distributed.get_size()
        order = not skip_shuffle_at_epoch_end if shuffle else None
        return self._decorator("train", dataset_id, dataset_version, order, slots)

    def cache_validation_dataset(
        self, dataset_id: str, dataset_version: str, shuffle: bool = False
    ) -> Callable[[Maker], Maker]:
        """Returns a decorator for the function that returns the validation records.

        Args:
            dataset_id: name of the data.
            dataset_version: change it when the function returns something else.
            shuffle: whether to shuffle, record by record.
        """
        return self._decorator("val", dataset_id, dataset_version, True if shuffle else None)

    def _decorator(
        self, role: str, name: str, version: str, reshuffle: bool | None, divisor: int = 1
    ) -> Callable[[Maker], Maker]:
        self.used.add(role)
        root = directory_of(self._context.env.config, "data_layer")
        directory = os.path.join(root, _quoted(name), _quoted(f"{version}_{role}"))

        def decorate(make: Maker) -> Maker:
            @functools.wraps(make)
            def cached(*args: Any, **kwargs: Any) -> tf.data.Dataset:
                with distributed.eager_mode():  # also while a graph is built
                    path = _stored(directory, lambda: make(*args, **kwargs))
                    count = int(tf.data.Dataset.load(path).cardinality())
                # The function may have drawn random numbers, and is not called the next time.
                seed = self._context.get_trial_seed()
                tf.random.set_seed(seed)
                count -= count % divisor
                dataset = tf.data.Dataset.load(path).take(count)
                if reshuffle is not None and count:
                    dataset = dataset.shuffle(_window(path, count), seed, reshuffle)
                return self._context.share_of(dataset)

            return cached

        return decorate


def _stored(directory: str, make: Callable[[], tf.data.Dataset]) -> str:
    """Returns the path of a key's records; computes them if they are missing.

    Processes that do so at the same time write separate directories; the workers of a trial use
    that of the first one, because they divide the records by their order, which may differ.
    """
    note = os.path.join(directory, _STORED)
    if not gfile().exists(note):
        dataset = make()
        if not isinstance(dataset, tf.data.Dataset):
            raise InvalidDataTypeException(
                "A function that is decorated to be cached must return a tf.data.Dataset, but got "
                f"{type(dataset).__name__} for {directory}"
            )
        name = uuid.uuid4().hex
        dataset.save(os.path.join(directory, name))
        if not gfile().exists(note):
            write_whole(note, name)
    path = os.path.join(directory, read_whole(note).decode())
    first = distributed.gather(path)[0] if distributed.size() > 1 else path
    return first if gfile().exists(first) else path  # on a disk of another machine


def _window(path: str, count: int) -> int:
    """Returns how many of the stored records may be in memory to be shuffled."""
    files = gfile()
    size = sum(
        files.stat(os.path.join(folder, name)).length
        for folder, _, names in files.walk(path)
        for name in names
    )
    window = min(count, max(_MOST_SHUFFLED, count * _MOST_BYTES // size))
    if window < count:
        _logger.warning(
            "%s: the next record is taken at random from a window of %d of the %d records. If they "
            "are sorted, shuffle them in the function that makes the dataset.",
            path,
            window,
            count,
        )
    return window
