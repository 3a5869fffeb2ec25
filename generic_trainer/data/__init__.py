"""The reader: `tf.data` datasets of examples, many times faster than TFX's own.

::

    from generic_trainer.data import make_dataset_factory

    factory = make_dataset_factory(fallback=tfx_factory, payload_format="FORMAT_TF_EXAMPLE")
    dataset = factory(file_pattern, options, schema)   # as fn_args.data_accessor.tf_dataset_factory

The elements are those of `TensorFlowDataset` of tfx_bsl: of tf.Examples, of tf.SequenceExamples,
and of what a data view decodes. What differs is how they come to be, chosen by size and stated in
one log line:

1. In memory: records are parsed once, in parallel, into columns. Every epoch is a full shuffle.
2. On disk: the same columns in memory-mapped files. Shuffled by block and within windows of blocks.
3. Streaming: TFX's own graph with parallel parsing, where disk is short, where one pass over more
   than memory holds is asked for, and where the dataset runs in another process.

How data flows through the modules, all of it called from `_factory`:

| step | module | makes |
|---|---|---|
| 1 | `_parser` | of a schema, what parses a record; `_core.records` finds the files |
| | `_sequences`, `_views` | the same for tf.SequenceExamples, and of a data view |
| 2 | `_plan`, `_budget` | of the first records and of what is free, the path |
| 3 | `_loading` | of all records, columns; `_counting` sees that no file was cut off |
| | `_cache` | of columns, files in the `_cache_folder`, which later processes map instead |
| 4 | `_order` | of a position in the stream of epochs, a row |
| 5 | `_datasets` | of rows, batches; or of records, where the path is to stream |

Below steps 3 and 5 is the form of columns: `_layout` divides the features of a schema into dense
ones and `_lists`, these into `_columns`, these into arrays of a `_store`. `_diagnosis` explains
errors of any step; `_graph` has what it takes to run in graphs and beside them. `_record_batches`
are apart from all that: tfx_bsl decodes them, and the cache keeps them.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.data._budget import MEMORY_VARIABLE as MEMORY_VARIABLE
    from generic_trainer.data._budget import default_budget_bytes as default_budget_bytes
    from generic_trainer.data._budget import size_text as size_text
    from generic_trainer.data._cache_folder import CacheFolder as CacheFolder
    from generic_trainer.data._counting import SplitCounts, count_examples
    from generic_trainer.data._diagnosis import explain_read_errors
    from generic_trainer.data._factory import make_dataset_factory
    from generic_trainer.data._record_batches import make_record_batch_factory

__all__ = [
    "SplitCounts", "count_examples", "explain_read_errors", "make_dataset_factory",
    "make_record_batch_factory",
]  # fmt: skip

# The names of the budget and the cache are for the command line, which says what they are.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_budget": "MEMORY_VARIABLE default_budget_bytes size_text",
        "_cache_folder": "CacheFolder",
        "_counting": "SplitCounts count_examples",
        "_diagnosis": "explain_read_errors",
        "_factory": "make_dataset_factory",
        "_record_batches": "make_record_batch_factory",
    },
)
