"""Experiments that a script starts: `init` of each API, and `create` for a trial class."""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.training import distributed
from generic_trainer.trials._config import check_fields
from generic_trainer.trials._context import seed_generators
from generic_trainer.trials._hyperparameters import Constant
from generic_trainer.trials._loop import Controller
from generic_trainer.trials._pipeline import current_pipeline
from generic_trainer.trials._scripts import job, loading
from generic_trainer.trials._trial import (
    HorovodContext,
    Trial,
    TrialRun,
    current,
    current_run,
    downloaded,
    sole_trial,
)
from generic_trainer.user_code import is_importing

_logger = logging.getLogger(__name__)

C = TypeVar("C")
Start = Callable[[Controller], None]


class Mode(enum.Enum):
    """The mode of Determined 0.12, first SUBMIT and TEST; later it is `local=True, test=True`.

    ``Mode("submit")`` and ``Mode("test")`` are modes too.
    """

    CLUSTER = "cluster"
    LOCAL = "local"
    SUBMIT = "cluster"
    TEST = "local"

    @classmethod
    def _missing_(cls, value: object) -> Mode | None:
        return cls.__members__.get(str(value).upper())


@dataclasses.dataclass(frozen=True)
class Init(Generic[C]):
    """`init` of an API: returns the context that its models are trained by.

    Attributes:
        make_context: takes a trial, and a function to call with the controller when the script
            trains.
    """

    make_context: Callable[[TrialRun, Start], C]

    def __call__(
        self,
        config: Mapping[str, Any] | None = None,
        local: bool | Mode | str = False,
        test: bool = False,
        context_dir: str = "",
        command: Sequence[str] | None = None,
        master_url: str | None = None,
        *,
        mode: Mode | str | None = None,
    ) -> C:
        """Returns the context to train a model by.

        Args:
            config: the experiment configuration.
            local: whether to train here, a single trial; its results go below
                `checkpoint_storage`.
            test: whether to train one batch only, to see that everything fits together.
            context_dir: the folder with the code, which is sent to the cluster; if the script
                trains here, its working directory from now on.
            command: the script in it and its arguments; by default the script that runs now.
            master_url: the cluster's address, `http://head:8265`; by default the environment
                variable DET_MASTER.
            mode: a `Mode` or its value, as release 0.12 had it in place of `local` and `test`.

        Raises:
            InvalidExperimentException: `context_dir` is not a folder, or `command` is needed.
            SystemExit: with 0, once the experiment is submitted: the rest of the script is for the
                cluster.
        """
        begun = _begin(config, local, test, context_dir, command, master_url, mode=mode)
        if isinstance(begun, str):
            sys.exit(0)
        run, start = begun
        seed_generators(run.seed)
        return self.make_context(run, start)


def create(
    trial_def: type[Trial],
    config: Mapping[str, Any] | None = None,
    local: bool | Mode | str = False,
    test: bool = False,
    context_dir: str = "",
    command: Sequence[str] | None = None,
    master_url: str | None = None,
    *,
    mode: Mode | str | None = None,
) -> str | None:
    """Creates an experiment of a trial class.

    Args:
        trial_def: the trial class.
        config: see `estimator.init`, as for all that follow.
        local: whether to run the experiment here.
        test: whether to train one batch only.
        context_dir: the folder with the code.
        command: the script in it and its arguments.
        master_url: the cluster's address.
        mode: in place of `local` and `test`.

    Returns:
        The job's name on the cluster; None after a local run.

    Raises:
        InvalidExperimentException: `context_dir` is not a folder, or `command` is needed.
    """
    directory = os.getcwd()
    try:
        begun = _begin(config, local, test, context_dir, command, master_url, mode=mode)
        if isinstance(begun, str):
            return begun
        run, start = begun
        run = downloaded(trial_def, run)
        with current(run):
            start(trial_def.open_controller(run))
    finally:
        os.chdir(directory)
    return None


def test_one_batch(trial_class: type[Trial], config: Mapping[str, Any] | None = None) -> None:
    """Trains one batch of a trial class here, validates once, and writes a checkpoint."""
    create(trial_class, config, local=True, test=True)


test_one_batch.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for one


def create_trial_instance(
    trial_def: type[Trial],
    checkpoint_dir: str,
    config: Mapping[str, Any] | None = None,
    hparams: Mapping[str, Any] | None = None,
) -> Any:
    """Returns a trial, to call its methods in a notebook or a debugger.

    Args:
        trial_def: the trial class.
        checkpoint_dir: a directory for checkpoints; nothing is read from it.
        config: the experiment configuration.
        hparams: hyperparameters, in place of those drawn from the configuration's.
    """
    run = sole_trial({**(config or {}), **({"hyperparameters": hparams} if hparams else {})})
    run = dataclasses.replace(run, checkpoint_dir=checkpoint_dir)
    seed_generators(run.seed)
    context_class = getattr(trial_def, "trial_context_class", None)
    made_of = context_class(run, HorovodContext()) if context_class else dict(run.hparams)
    return trial_def(made_of)  # type: ignore[call-arg]


def _begin(*given: Any, mode: Mode | str | None) -> tuple[TrialRun, Start] | str:
    """Returns a trial and a function that starts it, or the name of a job that was submitted.

    The arguments of `init` are those of release 0.13, or those of 0.12 by position: a Mode comes
    second.
    """
    config, local, test, context_dir, command, master_url = given
    if isinstance(local, (Mode, str)):
        mode = local
        local = False
        # What came by position is one place too far to the right; names are where they belong.
        if isinstance(command, str):
            command, master_url = None, command
        if context_dir and not isinstance(context_dir, str):
            context_dir, command = "", context_dir
        if isinstance(test, str):
            context_dir = test
        test = False
    config = {} if config is None else config
    check_fields(config)
    run = current_run()  # on a cluster, or in a pipeline
    if run is not None:
        return run, _stop_loading
    if current_pipeline() is not None:
        raise loading.StopLoadingImplementation(config=config)
    if is_importing():  # into a pipeline, which runs the script later
        return sole_trial(config), lambda controller: controller.close()
    is_local = local if mode is None else Mode(mode) is Mode.LOCAL
    if is_local and context_dir:
        os.chdir(job.existing_context_dir(context_dir))
    is_test = test or (is_local and mode is not None)
    config = loading.one_batch_config(config) if is_test else config
    if not is_local:
        return job.submit(config, context_dir, command, master_url)
    directory = None if is_test else job.new_results(config, "local")[1]
    run = sole_trial(config)
    if directory is not None:  # where `run_trials` writes
        logs = os.path.join(directory, "model_run", "trials", str(run.trial_id))
        run = dataclasses.replace(run, log_dir=logs)
    return run, functools.partial(_train_here, run, directory)


def _train_here(trial: TrialRun, directory: str | None, controller: Controller) -> None:
    """Trains the trial of a script to its end, validates, and exports the model.

    Without a directory for the results, they are deleted.
    """
    hparams = {name: Constant(value) for name, value in trial.hparams.items()}
    searcher = {**(trial.config.get("searcher") or {}), "name": "single"}
    # The script has built the model, and nothing could build it again for a restart.
    config = {**trial.config, "hyperparameters": hparams, "searcher": searcher, "max_restarts": 0}
    with distributed.eager_mode(), ScratchFolder("experiment-") as scratch:
        job.run_trials(loading.script_trial(lambda: controller), config, directory or scratch)
    place = f"in {directory}" if directory else "deleted; to keep them, leave out test=True"
    _logger.info("The trial is trained; its results are %s", place)


def _stop_loading(controller: Controller) -> None:
    raise loading.StopLoadingImplementation(controller)
