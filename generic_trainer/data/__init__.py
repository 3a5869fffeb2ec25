"""The reader: `tf.data` datasets of examples, many times faster than TFX's own.

::

    from generic_trainer.data import make_dataset_factory

    factory = make_dataset_factory(fallback=tfx_factory, payload_format="FORMAT_TF_EXAMPLE")
    dataset = factory(file_pattern, options, schema)   # as fn_args.data_accessor.tf_dataset_factory

The elements are those of tfx_bsl's `TensorFlowDataset` of tf.Examples. The reader makes them in one
of three ways, which it chooses by size and logs:

1. In memory: records are parsed once, in parallel, into columns.
2. On disk: the same columns in memory-mapped files, read in the same order.
3. Streaming: TFX's own graph with parallel parsing, if the disk is short, if one pass over more
   than memory holds is asked for, and if the dataset runs in another process.

Other payload formats, and record batches, are left to TFX. Without TFX, module files take
`TensorFlowDatasetOptions` and `load_schema` from here.

How data flows through the modules, all of it called from `_factory`:

| step | module | task |
|---|---|---|
| 1 | `_parser` | turns a schema into a parser of records; `_core.records` finds the files |
| 2 | `_plan`, `_budget` | choose the path by the first records and the room on this machine |
| 3 | `_loading` | parses all records into columns, and checks that no file is cut off |
| | `_cache` | keeps the columns in a folder, from which later processes map them |
| 4 | `_order` | maps a position in the stream of epochs to a row |
| 5 | `_datasets` | gathers rows into batches; or streams records |

Steps 3 and 5 share the form of columns: `_layout` divides the features of a schema into dense
ones and `_lists`, these into `_columns`, these into arrays of a `_store`. `_diagnosis` explains
errors of any step; `_graph` runs functions in graphs and beside them.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer._core.texts import load_schema
    from generic_trainer.data._diagnosis import explain_read_errors
    from generic_trainer.data._factory import TensorFlowDatasetOptions, make_dataset_factory
    from generic_trainer.data._loading import SplitCounts, count_examples

__all__ = [
    "SplitCounts",
    "TensorFlowDatasetOptions",
    "count_examples",
    "explain_read_errors",
    "load_schema",
    "make_dataset_factory",
]

# The names of the budget are for the command line; the parser and `counting_anew` for the rest.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_budget": "MEMORY_VARIABLE default_budget_bytes",
        "_loading": "SplitCounts count_examples",
        "_diagnosis": "explain_read_errors",
        "_factory": "TensorFlowDatasetOptions counting_anew make_dataset_factory",
        "_parser": "Parser is_read parse_spec",
        "generic_trainer._core.texts": "load_schema",
    },
)
