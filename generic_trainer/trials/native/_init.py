"""`init` of every API: a context, and what happens when the script trains."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from generic_trainer.trials._code import code_file
from generic_trainer.trials._loop import Controller
from generic_trainer.trials._seed import seed_generators
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.native._configs import local_run
from generic_trainer.trials.native._loading import StopLoadingImplementation, run_to_load
from generic_trainer.trials.native._local import try_one_batch
from generic_trainer.trials.native._mode import Mode, runs_here
from generic_trainer.trials.native._submit import submit_experiment

__all__ = ["Call", "init"]

C = TypeVar("C")
Start = Callable[[Controller], None]


@dataclasses.dataclass(frozen=True)
class Call:
    """Arguments of `init` or `create`, in whichever of their forms they were given.

    Attributes:
        config: the experiment configuration.
        here: whether it is tested in this process.
        test: whether one batch is enough.
        context_dir: the folder with the user's code.
        command: the script in it and its arguments; by default the script that runs now.
        master_url: the cluster.
    """

    config: Mapping[str, Any]
    here: bool
    test: bool
    context_dir: str
    command: Sequence[str] | None
    master_url: str | None

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any] | None,
        local: Any,
        test: Any,
        context_dir: Any,
        command: Any,
        master_url: str | None,
        mode: Mode | str | None,
    ) -> Call:
        """Takes the arguments of release 0.13, or those of 0.12 by position: a Mode comes second.

        Raises:
            NotImplementedError: a whole experiment shall run here.
            ValueError: `mode` is none.
        """
        if isinstance(local, (Mode, str)):
            mode, local = local, False
            # What came by position is one place too far to the right; names are where they belong.
            folder = next((value for value in (test, context_dir) if _is_text(value)), "")
            url = next((value for value in (command, master_url) if _is_text(value)), None)
            words = (value for value in (context_dir, command) if value and not _is_text(value))
            context_dir, command, master_url = folder, next(words, None), url
            test = False
        here = runs_here(None if mode is None else Mode(mode), local, test)
        return cls(config or {}, here, test, context_dir, command, master_url)


def init(make_context: Callable[[TrialRun, Start, str | None], C], call: Call) -> C:
    """Returns a context whose script trains here, is loaded, or is sent to the cluster.

    Args:
        make_context: takes a trial, what is to be called with the controller when the script
            trains, and the file of the script.
        call: the arguments of `init`.

    Raises:
        SystemExit: with 0, once the experiment is submitted: the rest of the script is for the
            cluster.
    """
    code = code_file("__main__")
    run = run_to_load()
    if run is not None:
        seed_generators(run.seed)
        return make_context(run, _stop_loading, code)
    if not call.here:
        submit_experiment(call.config, call.test, call.context_dir, call.command, call.master_url)
        sys.exit(0)
    run = local_run(call.config)
    seed_generators(run.seed)
    return make_context(run, try_one_batch, code)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _stop_loading(controller: Controller) -> None:
    raise StopLoadingImplementation(controller)
