"""The reader: `tf.data` datasets of tf.Examples, many times faster than TFX's own.

::

    from generic_trainer.data import make_dataset_factory

    factory = make_dataset_factory(fallback=tfx_factory, payload_format="FORMAT_TF_EXAMPLE")
    dataset = factory(file_pattern, options, schema)   # as fn_args.data_accessor.tf_dataset_factory

The elements are those of tfx_bsl's `TFExampleRecord.TensorFlowDataset`. What differs is how they
come to be, chosen by size and stated in one log line:

1. In memory: records are parsed once, in parallel, into columns. Every epoch is a full shuffle.
2. On disk: the same columns in memory-mapped files. Shuffled by block and within windows of blocks.
3. Streaming: TFX's own graph with parallel parsing, where disk is short, where one pass over more
   than memory holds is asked for, and where the dataset runs in another process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.data._budget import MEMORY_VARIABLE, default_budget_bytes
    from generic_trainer.data._count import count_examples
    from generic_trainer.data._diagnose import explain_read_errors
    from generic_trainer.data._factory import make_dataset_factory
    from generic_trainer.data._split_counts import SplitCounts

__all__ = [
    "MEMORY_VARIABLE",
    "SplitCounts",
    "count_examples",
    "default_budget_bytes",
    "explain_read_errors",
    "make_dataset_factory",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "MEMORY_VARIABLE": "generic_trainer.data._budget",
        "SplitCounts": "generic_trainer.data._split_counts",
        "count_examples": "generic_trainer.data._count",
        "default_budget_bytes": "generic_trainer.data._budget",
        "explain_read_errors": "generic_trainer.data._diagnose",
        "make_dataset_factory": "generic_trainer.data._factory",
    },
)
