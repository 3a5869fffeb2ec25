"""`make_dataset_factory`, the drop-in for TFX's `tf_dataset_factory`."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf

from generic_trainer._core.cluster import is_one_of_several
from generic_trainer._core.progress import note
from generic_trainer._core.records import READ_ERRORS, RecordFile, match_files
from generic_trainer.data._budget import ReaderBudget
from generic_trainer.data._cache import columns_key, find_columns, keep_columns
from generic_trainer.data._cache_folder import CacheFolder
from generic_trainer.data._datasets import column_dataset, stream_dataset
from generic_trainer.data._diagnosis import read_error, watch
from generic_trainer.data._graph import eagerly
from generic_trainer.data._loading import Columns, NoRoom, load_columns
from generic_trainer.data._order import choose_order
from generic_trainer.data._parser import TF_EXAMPLE, Parser
from generic_trainer.data._plan import (
    Estimate,
    ReadPath,
    ReadPlan,
    choose_path,
    estimate,
    reason_to_stream,
)
from generic_trainer.data._sequences import SequenceParser
from generic_trainer.data._views import NOT_BY_ROW, ViewParser
from generic_trainer.errors import ConfigurationError, DataError

_logger = logging.getLogger(__name__)

DatasetFactory = Callable[[Sequence[str], Any, Any], tf.data.Dataset]
MakeParser = Callable[[Any, str | None], Parser]
# Payload format → what makes a parser of a schema and a label.
_PARSERS: Mapping[str, MakeParser] = {
    TF_EXAMPLE: Parser.from_schema,
    "FORMAT_TF_SEQUENCE_EXAMPLE": SequenceParser.from_schema,
}
# Workers must agree on the order before they can shard it.
_CLUSTER_SEED = 0
_CHOSEN = "that path was chosen"


def make_dataset_factory(
    fallback: DatasetFactory | None = None,
    *,
    payload_format: str = TF_EXAMPLE,
    data_view_uri: str | None = None,
    memory_budget_bytes: int | None = None,
    cache_dir: str | None = None,
    seed: int | None = None,
    path: Literal["auto", "memory", "disk", "stream"] = "auto",
) -> DatasetFactory:
    """Returns a `tf_dataset_factory(file_pattern, options, schema)` for `fn_args.data_accessor`.

    1. The datasets have the elements of TFX's: names, types, shapes, dense, sparse and ragged
       tensors by the schema's tensor representations, label, last batch, epochs.
    2. Every field of `TensorFlowDatasetOptions` counts, also `parser_num_threads`,
       `sloppy_ordering` and `prefetch_buffer_size`, which tfx_bsl ignores. `shuffle_buffer_size`
       is a lower bound: columns in memory are shuffled as a whole.
    3. Unshuffled, the order is that of TFX. Shuffled, it is another one than TFX's; with a seed it
       is the same in every run, and a different one in every epoch.
    4. Examples are read when the dataset is made, and once: a second dataset of the same files and
       schema, from the same factory, shares their columns. They are freed with the factory and its
       datasets. A copy on the local disk serves later processes: see GENERIC_TRAINER_CACHE_DIR in
       docs/operations.md.
    5. The workers of a cluster agree on the order without a seed being set, so that automatic
       sharding (by data: the columns have no files left to shard) gives each its share. Parameter
       server strategies do not shard: each worker goes through everything, as with TFX's reader.

    Args:
        fallback: TFX's own factory, for payload formats that have no columns, and for data views
            in graphs of TensorFlow 1.
        payload_format: name in `tfx.proto.example_gen_pb2.PayloadFormat`.
        data_view_uri: the data view that decodes records of the payload format FORMAT_PROTO.
        memory_budget_bytes: what all columns of this factory may take in memory; None: the
            megabytes that GENERIC_TRAINER_READER_MEMORY_MB says in the environment, else a quarter
            of what is free when the first dataset is made.
        cache_dir: directory on a local disk for columns beyond the budget; None: the one for
            temporary files. Its files have no names, and vanish with the process.
        seed: what shuffles where the options have no `shuffle_seed`; None: a random one.
        path: "auto" chooses by size; any other value is taken as it is.

    Raises:
        ConfigurationError: a payload format that needs a fallback and has none, or an unknown path.

    The factory itself raises `ConfigurationError` for a budget in the environment that is no
    number and for a schema that tfx_bsl cannot use, and `DataError` for files that are missing,
    unreadable or not what the schema says, and for shapes that no memory could hold. A streaming
    dataset meets bad records only while it is iterated: see `explain_read_errors`.
    """
    if path not in ("auto", "memory", "disk", "stream"):
        raise ConfigurationError(
            f"path: expected 'auto', 'memory', 'disk' or 'stream', found {path!r}"
        )
    make_parser = _of_view(data_view_uri) if data_view_uri else _PARSERS.get(payload_format)
    if make_parser is None:
        return _announced(fallback, payload_format)
    reader = _Reader(
        make_parser,
        lambda: ReaderBudget.of(memory_budget_bytes, cache_dir),
        seed,
        None if path == "auto" else path,
    )
    if not data_view_uri or fallback is None:
        return reader
    others = _announced(fallback, payload_format)
    # What is loaded eagerly cannot be called in a graph that somebody builds.
    return lambda *arguments: (reader if tf.executing_eagerly() else others)(*arguments)


def _of_view(uri: str) -> MakeParser:
    load = functools.cache(lambda: ViewParser.from_uri(uri))
    return lambda schema, label_key: load().with_label(label_key)


def _announced(fallback: DatasetFactory | None, payload_format: str) -> DatasetFactory:
    if fallback is None:
        raise ConfigurationError(
            f"payload_format: expected {' or '.join(_PARSERS)} where neither a data view nor a "
            f"fallback is given, found {payload_format}. Pass TFX's factory as fallback."
        )

    def factory(file_pattern: Sequence[str], options: Any, schema: Any) -> tf.data.Dataset:
        _logger.info("Reading %s through TFX's own reader: it is not sped up", payload_format)
        return fallback(file_pattern, options, schema)

    return factory


class _Reader:
    """A `tf_dataset_factory`: its datasets share their columns and a budget."""

    def __init__(
        self,
        make_parser: MakeParser,
        make_budget: Callable[[], ReaderBudget],
        seed: int | None,
        path: ReadPath | None,
    ) -> None:
        self._make_parser = make_parser
        # When the first dataset is made:
        self._make_budget = functools.cache(make_budget)
        self._cache_folder = functools.cache(CacheFolder.of_environment)
        self._seed = seed
        self._path = path
        # By the files and by what is parsed of them.
        self._columns: dict[tuple[tuple[RecordFile, ...], str], Columns] = {}

    def __call__(
        self, file_pattern: str | Sequence[str], options: Any, schema: Any
    ) -> tf.data.Dataset:
        parser = self._make_parser(schema, options.label_key)
        options = parser.options(options)
        parser.check_room(options.batch_size)
        files = match_files(file_pattern)
        seed = self._seed_of(options)
        columns: Columns | None = None
        reason = _CHOSEN if self._path == "stream" else reason_to_stream()
        if reason is None:
            try:
                columns = self._columns_of(files, parser, options)
            except NoRoom as error:
                reason = str(error)
            except DataError as error:
                if error.path or not isinstance(parser, ViewParser):
                    raise
                reason = f"{NOT_BY_ROW}: {error}"
        size = options.batch_size
        if columns is not None and columns.num_rows:
            place = "memory" if columns.store.in_memory else "disk"
            what = f"{columns.num_rows:,} examples of {_place_of(files)}, from {place}"
            note(read=f"{what}, in batches of {size}", reader_batch_size=size)
            order = choose_order(columns, options, self._room().memory_bytes)
            return column_dataset(columns, parser, order, options, seed)
        _logger.info("Streaming %s: %s", _files_text(files), reason or "they are empty")
        note(read=f"{_place_of(files)}, streamed in batches of {size}", reader_batch_size=size)
        watch(files, parser)
        return stream_dataset(files, parser, options, seed)

    def _seed_of(self, options: Any) -> int | None:
        if options.shuffle_seed is not None:
            return int(options.shuffle_seed)
        if self._seed is None and is_one_of_several():
            return _CLUSTER_SEED
        return self._seed

    def _columns_of(self, files: tuple[RecordFile, ...], parser: Parser, options: Any) -> Columns:
        key = (files, parser.key())
        if key not in self._columns:
            self._columns[key] = self._read(files, parser, options)
        return self._columns[key]

    def _read(self, files: tuple[RecordFile, ...], parser: Parser, options: Any) -> Columns:
        """Maps columns that are cached, or parses the files and caches the columns."""
        folder = self._cache_folder()
        key = self._key(files, parser) if folder else ""
        if folder and (found := find_columns(folder, key)):
            plan = self._plan(Estimate(found.num_rows, 0, found.expected_bytes), options)
            fits = found.num_bytes <= plan.budget.memory_bytes
            if plan.path == "stream" or (plan.path == "memory" and plan.one_pass and not fits):
                raise NoRoom(plan.reason)
            if columns := found.open(files, parser, in_memory=plan.path == "memory" and fits):
                _announce(files, columns, f"{plan.reason}; parsed by an earlier run")
                return columns
        if reason := eagerly(lambda: parser.reason_to_stream(files)):
            raise NoRoom(reason)
        plan = self._plan(self._estimate(files, parser), options)
        if plan.path == "stream":
            raise NoRoom(plan.reason)
        columns = eagerly(lambda: load_columns(files, parser, options, plan))
        _announce(files, columns, plan.reason)
        if folder and columns.num_rows:
            keep_columns(folder, key, files, parser, columns, plan.expected.column_bytes)
        return columns

    def _key(self, files: Sequence[RecordFile], parser: Parser) -> str:
        try:
            return columns_key(files, parser)
        except READ_ERRORS as error:
            raise read_error(files, parser, error) from error

    def _estimate(self, files: Sequence[RecordFile], parser: Parser) -> Estimate:
        try:
            return eagerly(lambda: estimate(files, parser))
        except READ_ERRORS as error:
            raise read_error(files, parser, error) from error

    def _plan(self, expected: Estimate, options: Any) -> ReadPlan:
        budget, one_pass = self._room(), options.num_epochs == 1
        if self._path is not None:
            return ReadPlan(self._path, _CHOSEN, expected, budget, one_pass)
        path, reason = choose_path(expected.column_bytes, budget, one_pass)
        return ReadPlan(path, reason, expected, budget, one_pass)

    def _room(self) -> ReaderBudget:
        """Returns what the columns so far have left of the budget."""
        taken = sum(each.store.memory_bytes for each in self._columns.values())
        return self._make_budget().without(taken)


def _announce(files: Sequence[RecordFile], columns: Columns, reason: str) -> None:
    in_memory = columns.store.in_memory
    _logger.info(
        "Reading %s examples (%s) from %s: %.1f MB of columns; %s; %s",
        f"{columns.num_rows:,}",
        _files_text(files),
        "memory" if in_memory else "disk",
        columns.store.num_bytes / 1e6,
        reason,
        "every epoch is a full shuffle"
        if in_memory
        else "shuffled by block and within windows of blocks",
    )


def _place_of(files: Sequence[RecordFile]) -> str:
    return f"{os.path.dirname(files[0].path)} ({_files_text(files)})"


def _files_text(files: Sequence[RecordFile]) -> str:
    return f"{len(files)} file(s), {sum(file.size for file in files) / 1e6:.1f} MB"
