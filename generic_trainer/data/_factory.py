"""`make_dataset_factory`, the drop-in for TFX's `tf_dataset_factory`."""

import collections
import contextlib
import contextvars
import functools
import hashlib
import logging
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import tensorflow as tf

from generic_trainer._core.cluster import is_one_of_several
from generic_trainer._core.progress import note
from generic_trainer._core.records import READ_ERRORS, RecordFile, match_files, streaming
from generic_trainer._core.texts import reason_of
from generic_trainer.data._budget import PATH_VARIABLE, ReaderBudget, ReadPath, checked_path
from generic_trainer.data._cache import CacheFolder, columns_key, keep_columns, open_columns
from generic_trainer.data._datasets import column_dataset, stream_dataset
from generic_trainer.data._diagnosis import PARSE_ERRORS, diagnose, watch
from generic_trainer.data._graph import eagerly
from generic_trainer.data._loading import Columns, count_of, load_columns
from generic_trainer.data._order import choose_order
from generic_trainer.data._parser import TF_EXAMPLE, Parser
from generic_trainer.data._plan import (
    Estimate,
    NoColumns,
    NoRoom,
    ReadPlan,
    choose_path,
    estimate,
    reason_to_stream,
)
from generic_trainer.errors import ConfigurationError, DataError, GenericTrainerError

_logger = logging.getLogger(__name__)

T = TypeVar("T")
DatasetFactory = Callable[[Sequence[str], Any, Any], tf.data.Dataset]
_CLUSTER_SEED = 0
_CHOSEN = "that path was chosen"
_NO_ROOM_IN_CLUSTER = (
    "This worker has no room for the columns of the examples: {}. Expected room in memory or on "
    "disk, because all workers of a cluster must read in the same order. Make room, or set "
    f"{PATH_VARIABLE}=stream in the environment of all workers."
)


class TensorFlowDatasetOptions(NamedTuple):
    """How a dataset factory reads: `tfxio.TensorFlowDatasetOptions`, for a process without TFX.

    Attributes:
        batch_size: examples in a batch.
        drop_final_batch: whether a last batch that is smaller is left out.
        num_epochs: passes over the examples; None: without end.
        shuffle: whether the examples are in a random order, another one in each epoch.
        shuffle_buffer_size: examples that are shuffled with each other, at least.
        shuffle_seed: seed of the order; None: that of the factory.
        prefetch_buffer_size: batches that are made ahead; this and the following as in `tf.data`.
        reader_num_threads: files that are read at once.
        parser_num_threads: batches that are parsed at once.
        sloppy_ordering: whether the order may depend on which thread is faster.
        label_key: the feature that is split off as the label; None: no label.
    """

    batch_size: int
    drop_final_batch: bool = False
    num_epochs: int | None = None
    shuffle: bool = True
    shuffle_buffer_size: int = 10_000
    shuffle_seed: int | None = None
    prefetch_buffer_size: int = tf.data.AUTOTUNE
    reader_num_threads: int = tf.data.AUTOTUNE
    parser_num_threads: int = tf.data.AUTOTUNE
    sloppy_ordering: bool = False
    label_key: str | None = None


def make_dataset_factory(
    fallback: DatasetFactory | None = None,
    *,
    payload_format: str = TF_EXAMPLE,
    memory_budget_bytes: int | None = None,
    cache_dir: str | None = None,
    seed: int | None = None,
    path: Literal["auto", "memory", "disk", "stream"] = "auto",
) -> DatasetFactory:
    """Returns a `tf_dataset_factory(file_pattern, options, schema)` for `fn_args.data_accessor`.

    1. The datasets have the elements of TFX's: names, types, shapes, dense, sparse and ragged
       tensors by the schema's tensor representations, label, last batch, epochs.
    2. Every field of `TensorFlowDatasetOptions` has an effect, also `parser_num_threads`,
       `sloppy_ordering` and `prefetch_buffer_size`, which tfx_bsl ignores. `shuffle_buffer_size`
       is a lower bound: up to about 0.5 GB, columns are shuffled as a whole.
    3. Unshuffled, the order is that of TFX, except in a cluster. Shuffled, the order differs from
       TFX's; with a seed it is the same in every run, and a different one in every epoch. Each
       dataset has an order of its own, as with TFX: the seed of the first, second, ... dataset of
       files of the same sizes, with the same options, follows from the seed of the factory and that
       number.
    4. Examples are read once, when the dataset is made: a second dataset of the same files and
       schema, from the same factory, shares their columns. They are freed with the factory and its
       datasets. A copy on the local disk serves later processes: see GENERIC_TRAINER_CACHE_DIR in
       docs/operations.md.
    5. The workers of a cluster have the same order, even if no seed is set and their memory, disks
       and processors differ, so that automatic sharding (by data, as columns have no files) gives
       each worker its share. `sloppy_ordering` has no effect in a cluster. Parameter server
       strategies do not shard: each worker reads all examples, as with TFX's reader.

    Args:
        fallback: TFX's own factory, for payload formats other than tf.Examples.
        payload_format: name in `tfx.proto.example_gen_pb2.PayloadFormat`.
        memory_budget_bytes: memory for all columns of this factory; None: the megabytes in the
            environment variable GENERIC_TRAINER_READER_MEMORY_MB, else a quarter of the memory that
            is free when the first dataset is made.
        cache_dir: directory on a local disk for columns beyond the budget; None: the directory for
            temporary files. Its files have no names, and disappear with the process.
        seed: gives each dataset its seed if the options have no `shuffle_seed`; None: a random one.
        path: "memory", "disk" or "stream"; "auto": the path in GENERIC_TRAINER_READER_PATH, else
            one chosen by size. Memory and disk give the same order of rows.

    Raises:
        ConfigurationError: a payload format that needs a fallback and has none, or an unknown path.

    The factory itself raises `ConfigurationError` for a budget in the environment that is not a
    number, for a schema that it cannot read by, and on a worker of a cluster that has no room for
    columns of data that other workers may have room for. It raises `DataError` for files that are
    missing, unreadable or in conflict with the schema, and for shapes that no memory could hold. A
    streaming dataset meets bad records only while it is iterated: see `explain_read_errors`.
    """
    chosen = checked_path(path)
    if payload_format == TF_EXAMPLE:
        budget = functools.cache(lambda: ReaderBudget.of(memory_budget_bytes, cache_dir))
        return _Reader(budget, seed, chosen)
    if fallback is None:
        raise ConfigurationError(
            f"payload_format: expected {TF_EXAMPLE} unless a fallback is given, found "
            f"{payload_format}. Pass TFX's factory as fallback."
        )

    seeds = _Seeds(seed)

    def factory(file_pattern: Sequence[str], options: Any, schema: Any) -> tf.data.Dataset:
        _logger.info("Reading %s through TFX's own reader, at its speed", payload_format)
        return fallback(file_pattern, seeds.given_to(options, match_files(file_pattern)), schema)

    return factory


_counts: contextvars.ContextVar[collections.Counter[Any] | None] = contextvars.ContextVar(
    "numbers_of_datasets", default=None
)


@contextlib.contextmanager
def counting_anew() -> Iterator[None]:
    """Makes the next datasets of each factory the first ones of their files and options again.

    For code that runs several times in a process, or not at all after a restart, and has to read
    in the same order each time. Afterwards the count continues from where it was.
    """
    token = _counts.set(collections.Counter())
    try:
        yield
    finally:
        _counts.reset(token)


class _Seeds:
    """The seeds of the datasets of a factory.

    Two datasets must not come in the same order, or a module that zips them would pair each row
    with itself, or always with the same row of other files. So the seed of a dataset depends on the
    sizes of the files, on the options, and on the number of datasets of the same sizes and options
    so far. Paths differ between runs. Datasets of other sizes or options are not counted, because a
    worker may make some that the others do not.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._counts: collections.Counter[Any] = collections.Counter()

    def given_to(self, options: Any, files: tuple[RecordFile, ...]) -> Any:
        """Returns options with a seed, unless they have one or the factory has none."""
        seed = self._seed
        if is_one_of_several():  # `tf.data` shards by the order of rows: all workers have the same
            options = options._replace(sloppy_ordering=False)
            seed = _CLUSTER_SEED if seed is None else seed
        if seed is None or options.shuffle_seed is not None:
            return options
        # Without what may differ between machines, such as a number of threads.
        order = options._replace(
            prefetch_buffer_size=0, reader_num_threads=0, parser_num_threads=0, sloppy_ordering=0
        )
        counts = _counts.get()
        counts = self._counts if counts is None else counts
        kind = repr(order), tuple(file.size for file in files)
        counts[self, kind] += 1
        parts = seed, *kind, counts[self, kind]
        digest = hashlib.sha256(repr(parts).encode()).digest()
        return options._replace(shuffle_seed=int.from_bytes(digest[:4], "big") >> 1)


class _Reader:
    """A `tf_dataset_factory`: its datasets share their columns and a budget."""

    def __init__(
        self, make_budget: Callable[[], ReaderBudget], seed: int | None, path: ReadPath | None
    ) -> None:
        # Both are asked for when the first dataset is made, not before.
        self._make_budget = make_budget
        self._cache_folder = functools.cache(CacheFolder.of_environment)
        self._seeds = _Seeds(seed)
        self._path = path
        # By files and by the key of the parser.
        self._columns: dict[tuple[tuple[RecordFile, ...], str], Columns] = {}
        streaming.clear()  # of an earlier run in this process

    def __call__(
        self, file_pattern: str | Sequence[str], options: Any, schema: Any
    ) -> tf.data.Dataset:
        parser = Parser.from_schema(schema, options.label_key)
        size = operator.index(options.batch_size)  # of NumPy or TensorFlow, too
        if size < 1:
            raise ConfigurationError(
                f"batch_size: expected the number of examples in a batch, at least 1, found {size}"
            )
        files = match_files(file_pattern)
        _check_room(files, parser, size, options)
        # TFX ignores the number of threads, so None and 0 are no errors.
        threads = options.parser_num_threads or tf.data.AUTOTUNE
        options = options._replace(batch_size=size, parser_num_threads=threads)
        in_cluster = is_one_of_several()
        options = self._seeds.given_to(options, files)
        seed = None if options.shuffle_seed is None else int(options.shuffle_seed)
        columns: Columns | None = None
        reason = _CHOSEN if self._path == "stream" else reason_to_stream(parser)
        if reason is None:
            try:
                columns = self._columns_of(files, parser, options)
            except NoColumns as error:
                if in_cluster and isinstance(error, NoRoom):
                    raise ConfigurationError(_NO_ROOM_IN_CLUSTER.format(error)) from error
                reason = str(error)
        if columns is not None and columns.num_rows:
            place = "memory" if columns.store.in_memory else "disk"
            note(
                read=f"{columns.num_rows:,} examples of {_place_of(files)}, from {place}, "
                f"in batches of {size}",
                reader_batch_size=size,
            )
            order = choose_order(columns, options, in_cluster=in_cluster)
            return column_dataset(columns, parser, order, options, seed)
        _logger.info("Streaming %s: %s", _files_text(files), reason or "they are empty")
        note(read=f"{_place_of(files)}, streamed in batches of {size}", reader_batch_size=size)
        watch(files, parser)
        streaming.set()
        return stream_dataset(files, parser, options, seed, in_cluster=in_cluster)

    def _columns_of(self, files: tuple[RecordFile, ...], parser: Parser, options: Any) -> Columns:
        key = (files, parser.key())
        if key not in self._columns:
            self._columns[key] = self._read(files, parser, options)
        return self._columns[key]

    def _read(self, files: tuple[RecordFile, ...], parser: Parser, options: Any) -> Columns:
        """Maps columns that are cached, or parses the files and caches the columns."""
        folder = self._cache_folder()
        explained = functools.partial(_explained, files, parser)
        key = explained(lambda: columns_key(files, parser)) if folder else ""
        if folder and (entry := folder.find(key)):
            # Mapping is faster than streaming, and keeps the order of the run that has parsed.
            plan = self._plan(Estimate(0, 0, entry.expected_bytes), one_pass=False)
            in_memory = plan.path == "memory" and entry.num_bytes <= plan.budget.memory_bytes
            if columns := open_columns(folder, key, entry, files, parser, in_memory=in_memory):
                _announce(files, columns, f"{plan.reason}; parsed by an earlier run")
                return columns
        one_pass = options.num_epochs == 1
        plan = self._plan(explained(lambda: estimate(files, parser)), one_pass=one_pass)
        columns = explained(lambda: load_columns(files, parser, options, plan))
        _announce(files, columns, plan.reason)
        if folder and columns.num_rows:
            keep_columns(folder, key, files, parser, columns)
        return columns

    def _plan(self, expected: Estimate, *, one_pass: bool) -> ReadPlan:
        # Less the columns of this reader so far.
        taken = sum(columns.store.memory_bytes for columns in self._columns.values())
        budget = self._make_budget().without(taken)
        in_cluster = is_one_of_several()
        if self._path is not None:
            path = self._path
            reason = _CHOSEN
        else:
            path, reason = choose_path(
                expected.column_bytes, budget, one_pass=one_pass, in_cluster=in_cluster
            )
        return ReadPlan(path, reason, expected, budget, may_spill=in_cluster or not one_pass)


def _check_room(files: Sequence[RecordFile], parser: Parser, size: int, options: Any) -> None:
    """Raises `DataError` if a batch cannot be in memory; one may be larger than all examples."""
    try:
        parser.check_room(size)
    except DataError:
        epochs = options.num_epochs
        # TensorFlow crashes for the shape of such a batch that promises to be full.
        if epochs is None or epochs < 0 or options.drop_final_batch:
            raise
        rows = count_of(files) * operator.index(epochs)
        if rows >= size:
            raise
        parser.check_room(rows)


def _explained(files: Sequence[RecordFile], parser: Parser, read: Callable[[], T]) -> T:
    """Calls a function that reads; a failure becomes a `DataError` about the record at fault."""
    try:
        return eagerly(read)
    except GenericTrainerError:  # of which some are ValueErrors
        raise
    except PARSE_ERRORS as error:
        explained = diagnose(files, parser)
        if explained is None and not isinstance(error, READ_ERRORS):
            raise  # a ValueError that no record is the reason of
        raise explained or DataError(
            f"Cannot read {len(files)} TFRecord file(s), such as {files[0].path}: "
            f"{reason_of(error)}"
        ) from error


def _announce(files: Sequence[RecordFile], columns: Columns, reason: str) -> None:
    _logger.info(
        "Reading %s examples (%s) from %s: %.1f MB of columns; %s",
        f"{columns.num_rows:,}",
        _files_text(files),
        "memory" if columns.store.in_memory else "disk",
        columns.store.num_bytes / 1e6,
        reason,
    )


def _place_of(files: Sequence[RecordFile]) -> str:
    return f"{os.path.dirname(files[0].path)} ({_files_text(files)})"


def _files_text(files: Sequence[RecordFile]) -> str:
    return f"{len(files)} file(s), {sum(file.size for file in files) / 1e6:.1f} MB"
