"""`make_dataset_factory`: the drop-in for TFX's `tf_dataset_factory`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from generic_trainer.data._budget import default_budget_bytes
from generic_trainer.data._plan import Limits
from generic_trainer.data._reader import Reader
from generic_trainer.errors import ConfigurationError

__all__ = ["DatasetFactory", "make_dataset_factory"]

_logger = logging.getLogger(__name__)

DatasetFactory = Callable[[Sequence[str], Any, Any], tf.data.Dataset]
_FAST_FORMAT = "FORMAT_TF_EXAMPLE"


def make_dataset_factory(
    fallback: DatasetFactory | None = None,
    *,
    payload_format: str = _FAST_FORMAT,
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
       datasets.
    5. The workers of a cluster agree on the order without a seed being set, so that automatic
       sharding (by data: the columns have no files left to shard) gives each its share. Parameter
       server strategies do not shard: each worker goes through everything, as with TFX's reader.

    Args:
        fallback: TFX's own factory, for payload formats other than tf.Example.
        payload_format: name in `tfx.proto.example_gen_pb2.PayloadFormat`.
        memory_budget_bytes: what all columns of this factory may take in memory; None: the
            megabytes that GENERIC_TRAINER_READER_MEMORY_MB says in the environment, else a quarter
            of what is free when the first dataset is made.
        cache_dir: directory on a local disk for columns beyond the budget; None: the one for
            temporary files. Its files have no names, and vanish with the process.
        seed: what shuffles where the options have no `shuffle_seed`; None: a random one.
        path: "auto" chooses by size; any other value is taken as it is.

    Raises:
        ConfigurationError: another payload format and no fallback, or an unknown path.

    The factory itself raises `ConfigurationError` for a budget in the environment that is no
    number, `DataError` for files that are missing, unreadable or not what the schema says, and
    tfx_bsl's own `ValueError` for a schema that it cannot use. A streaming dataset meets bad
    records only while it is iterated: see `explain_read_errors`.
    """
    if path not in ("auto", "memory", "disk", "stream"):
        raise ConfigurationError(
            f"path: expected 'auto', 'memory', 'disk' or 'stream', found {path!r}"
        )
    if payload_format != _FAST_FORMAT:
        return _announced(fallback, payload_format)

    def limits() -> Limits:
        budget = default_budget_bytes() if memory_budget_bytes is None else memory_budget_bytes
        return Limits.of(budget, cache_dir)

    return Reader(limits, seed, path)


def _announced(fallback: DatasetFactory | None, payload_format: str) -> DatasetFactory:
    if fallback is None:
        raise ConfigurationError(
            f"payload_format: expected {_FAST_FORMAT} where no fallback is given, found "
            f"{payload_format}. Pass TFX's factory as fallback."
        )

    def factory(file_pattern: Sequence[str], options: Any, schema: Any) -> tf.data.Dataset:
        _logger.info("Reading %s through TFX's own reader: it is not sped up", payload_format)
        return fallback(file_pattern, options, schema)

    return factory
