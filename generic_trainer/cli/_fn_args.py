"""The argument of `run_fn` in a run without a pipeline: steps of one pass, a CSV's empty cells."""

import json
import os
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from generic_trainer._core.files import write_whole
from generic_trainer._core.texts import listed
from generic_trainer.cli._csv import Table, empty_label
from generic_trainer.cli._options import option
from generic_trainer.errors import ConfigurationError, DataError, GenericTrainerError
from generic_trainer.executors import FN_ARGS_FACTORY
from generic_trainer.launchers import TrainingRequest

_EMPTY_CELLS = "empty_cells.json"  # in the scratch directory: column → text, for a CSV file


def keep_empty_cells(table: Table, scratch_dir: str) -> None:
    """Keeps the empty cells of a table for `make_fn_args`, which another process may call."""
    cells = {name: str(empty) for name, empty in table.empty.items()}
    write_whole(os.path.join(scratch_dir, _EMPTY_CELLS), json.dumps(cells))


def empty_cells_in(scratch_dir: str) -> dict[str, str]:
    """Returns column → its empty cells in words, of the columns of a CSV file that have some."""
    try:
        with open(os.path.join(scratch_dir, _EMPTY_CELLS), encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:  # the examples are not a CSV file, or this is another machine
        return {}


def no_examples(named: Callable[[str], str]) -> ConfigurationError:
    """Returns the error for a module that reads examples in a run without any.

    Args:
        named: returns what the user calls an option.
    """
    return ConfigurationError(
        f"the module reads examples, but the run has none: give either {named('examples')}, or "
        f"{named('train')} and {named('eval')}"
    )


def empty_cells_remedy(error: GenericTrainerError, empty_cells: Mapping[str, str]) -> str:
    """Returns the remedy for a schema or a module that does not expect empty cells; or "".

    Errors of TensorFlow and Keras have no field for the kind of tensor: only their texts have it.
    """
    if isinstance(error, DataError):  # of the reader, whose cause may be "sparse" in any case
        if not (cells := empty_cells.get(error.feature or "")):
            return ""
        return (
            f"\nColumn {error.feature!r}: {cells}. Fill them in, or make the "
            f"column optional: delete `presence` and `shape` of {error.feature!r} in the schema."
        )
    if not empty_cells or "sparse" not in f"{error} {error.__cause__}".lower():
        return ""
    columns = listed([f"{name!r}, in which {cells}" for name, cells in empty_cells.items()], "; ")
    return (
        f"\nA column with empty cells is read as a tf.SparseTensor: {columns}. Two lines make such "
        "a column x dense, with 0 or an empty string in its empty cells:\n"
        "    x = tf.SparseTensor(x.indices, x.values, [x.dense_shape[0], 1])\n"
        '    x = tf.sparse.to_dense(x, default_value="" if x.dtype == tf.string else 0)'
    )


def make_fn_args(request: TrainingRequest, export_dir: str) -> Any:
    """Builds the argument as the executor does; steps that are not given become one pass.

    A run without `--train-steps` would otherwise never end, because datasets repeat by default. The
    number of batches follows from the batch size, so `train_steps` and `eval_steps` are set when
    `run_fn` makes an endless dataset of the files of the split; of several, the one with the
    smallest batches counts: a dataset for `adapt`, for example, may have larger ones.
    """
    fn_args = pkgutil.resolve_name(FN_ARGS_FACTORY)(request, export_dir)
    accessor = fn_args.data_accessor
    empty_cells = empty_cells_in(request.scratch_dir)
    passes: dict[str, int] = {}  # name of the field → the steps that are set here

    def make_dataset(file_pattern: Any, options: Any, schema: Any) -> Any:
        if not file_pattern:
            raise no_examples(option)
        if options.label_key in empty_cells:
            raise empty_label(options.label_key, empty_cells[options.label_key])
        dataset = accessor.tf_dataset_factory(file_pattern, options, schema)
        counts = fn_args.num_examples or {}
        is_endless = options.num_epochs is None or options.num_epochs < 0
        patterns = [file_pattern] if isinstance(file_pattern, str) else [*file_pattern]
        for split, files in (("train", fn_args.train_files), ("eval", fn_args.eval_files)):
            name = f"{split}_steps"
            is_open = getattr(fn_args, name) in (None, passes.get(name))
            if is_open and is_endless and patterns == [*files]:
                steps = -(-counts[split] // options.batch_size)
                passes[name] = max(steps, passes.get(name, 0))
                setattr(fn_args, name, passes[name])
        return dataset

    fn_args.data_accessor = accessor._replace(tf_dataset_factory=make_dataset)
    return fn_args
