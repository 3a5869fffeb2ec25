"""The trials of a script, loaded one after another.

On a cluster, and as the module file of a pipeline, the script is run anew for each trial, while
that is the current one, up to the line that would train and no further: `init` returns the context
of the trial; the call that would train raises an exception that carries the controller.
"""

import copy
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from absl import flags

from generic_trainer._core.files import gfile
from generic_trainer._core.flags import forget_flags
from generic_trainer.errors import ModuleFileError
from generic_trainer.training import is_chief
from generic_trainer.trials._loop import Controller
from generic_trainer.trials._pipeline import experiment_config, in_pipeline
from generic_trainer.trials._run_fn import run_fn_from_trial
from generic_trainer.trials._trial import Trial, TrialRun, sole_trial


class StopLoadingImplementation(BaseException):
    """Ends a script where it would train; no `except Exception` of the script keeps it.

    Attributes:
        controller: the trial, ready to be trained; None where there is none yet.
        config: the experiment configuration, if no trial exists yet.
    """

    def __init__(
        self, controller: Controller | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__("the script is loaded")
        self.controller = controller
        self.config = config or {}


def load(
    main: Callable[[], Any], command: Sequence[str], module: str = "__main__"
) -> StopLoadingImplementation | None:
    """Runs a script, a file with its arguments, up to where it would train.

    Returns None where it does nothing of that kind. What trains later may read its flags: those
    that importing `module`, or a script before, has defined are forgotten when the next one starts.
    """
    arguments, sys.argv = sys.argv, list(command)
    # A script's are listed by its path, as are those of the program that runs here.
    kept = {*sys.modules, *arguments[:1]} - {module}
    forget_flags(flags.FLAGS.flags_by_module_dict().keys() - kept)
    try:
        main()
    except StopLoadingImplementation as stop:
        return stop
    except SystemExit as end:  # `tf.app.run` exits with the result of its function
        if end.code and isinstance(end.code, (int, str)):
            raise
    finally:
        sys.argv = arguments
    return None


def script_trial(build: Callable[[], Controller], module: str = "__main__") -> type[Trial]:
    """Returns the trial class of a script, whose trials are those that a function builds."""

    class Script(Trial):
        """The trial that the script builds."""

        is_script = True

        @classmethod
        def open_controller(cls, run: TrialRun) -> Controller:
            return build()

    Script.__module__ = module
    return Script


def loaded_trial(
    main: Callable[[], Any], command: Sequence[str], module: str = "__main__"
) -> type[Trial]:
    """Returns the trial class of a script, which is run anew for each trial; see `load`."""

    def build() -> Controller:
        stopped = load(main, command, module)
        if stopped is None or stopped.controller is None:
            raise nothing_trained(command[0])
        return stopped.controller

    return script_trial(build, module)


def nothing_trained(path: str) -> ModuleFileError:
    """Returns the error about a script that ends without training."""
    return ModuleFileError(
        f"{path} ended without training: expected a call of context.train_and_evaluate(...), "
        "model.fit(...), experimental.create(...) or learn_runner.run(...)",
        path=path,
    )


def one_batch_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration of one trial on one batch, to see that all fits together.

    It validates and writes a checkpoint after that batch.
    """
    metric = (config.get("searcher") or {}).get("metric")
    return {
        **config,
        "description": f"[test-mode] {config.get('description', '')}".strip(),
        "scheduling_unit": 1,
        "min_validation_period": {"batches": 1},
        "searcher": {"name": "single", "max_length": {"batches": 1}, "metric": metric},
        "max_restarts": 0,
        "hyperparameters": dict(sole_trial(config).hparams),
    }


def run_fn_from_script(module: ModuleType) -> Callable[[Any], None]:
    """Returns the `run_fn` that runs a module as a script.

    1. A script with `init` or `create` is run anew for each trial, up to where it would train. Its
       configuration is its own, overridden by the component's `custom_config`.
    2. One with `learn_runner.run` is run once: the call trains the Experiment and publishes.

    While the module is imported, what starts an experiment in it does nothing; later it finds the
    pipeline, and takes from it where to write, hyperparameters, and what else is left out. The
    `run_fn` raises `ModuleFileError` where nothing is started.
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
            trial = loaded_trial(main, [path], module.__name__)
            run_fn_from_trial(trial)(fn_args)
        elif is_chief() and not gfile().exists(fn_args.serving_model_dir):
            raise nothing_trained(path)

    return run_fn
