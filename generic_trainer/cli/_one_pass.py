"""The argument of `run_fn` in a run from the command line, which nobody tells a number of steps."""

import pkgutil
from typing import Any

from generic_trainer.executors import FN_ARGS_FACTORY
from generic_trainer.launchers import TrainingRequest

ONE_PASS_FACTORY = f"{__name__}:make_fn_args"


def make_fn_args(request: TrainingRequest, export_dir: str) -> Any:
    """Builds the argument as the executor does; steps that are not given become one pass.

    A run without `--train-steps` would otherwise never end, because datasets repeat by default. The
    number of batches follows from the batch size, so `train_steps` and `eval_steps` are set when
    `run_fn` makes an endless dataset of the files of the split.
    """
    fn_args = pkgutil.resolve_name(FN_ARGS_FACTORY)(request, export_dir)
    accessor = fn_args.data_accessor

    def make_dataset(file_pattern: Any, options: Any, schema: Any) -> Any:
        dataset = accessor.tf_dataset_factory(file_pattern, options, schema)
        counts = fn_args.num_examples or {}
        for split, files in (("train", fn_args.train_files), ("eval", fn_args.eval_files)):
            is_open = options.num_epochs is None and getattr(fn_args, f"{split}_steps") is None
            if is_open and file_pattern == files:
                steps = -(-counts[split] // options.batch_size)
                setattr(fn_args, f"{split}_steps", steps)
        return dataset

    fn_args.data_accessor = accessor._replace(tf_dataset_factory=make_dataset)
    return fn_args
