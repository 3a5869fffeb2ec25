"""A script as a module file of a pipeline.

The module is run as a script would be, without arguments. What starts an experiment in it (`init`,
`create`, `learn_runner.run`) finds the pipeline, and takes from it where to write, hyperparameters
and what else the configuration leaves out. While the module is imported they do nothing.
"""

from __future__ import annotations

import copy
import runpy
from collections.abc import Callable
from types import ModuleType
from typing import Any

from generic_trainer._core.files import gfile
from generic_trainer.training import is_chief
from generic_trainer.trials._pipeline import experiment_config, in_pipeline
from generic_trainer.trials._run_fn import run_fn_from_trial
from generic_trainer.trials._scripts.loading import load, nothing_trained, script_trial


def run_fn_from_script(module: ModuleType) -> Callable[[Any], None]:
    """Returns the `run_fn` that runs a module as a script.

    1. A script with `init` or `create` is run anew for each trial, up to where it would train. Its
       configuration is what it passes on, and over that the component's `custom_config`.
    2. One with `learn_runner.run` is run once: the call trains the Experiment and publishes.

    Args:
        module: an imported one. The `run_fn` raises:
            ModuleFileError: it starts nothing.
    """
    path = module.__file__ or module.__name__

    def main() -> None:
        runpy.run_module(module.__name__, run_name="__main__", alter_sys=True)

    def run_fn(fn_args: Any) -> None:
        with in_pipeline(fn_args):
            stopped = load(main, [path], module.__name__)
        if stopped is not None:
            fn_args = copy.copy(fn_args)
            fn_args.custom_config = {**stopped.config, **experiment_config(fn_args, path)}
            trial = script_trial(main, [path], module.__name__)
            run_fn_from_trial(trial)(fn_args)
        elif is_chief() and not gfile().exists(fn_args.serving_model_dir):
            raise nothing_trained(path)

    return run_fn
