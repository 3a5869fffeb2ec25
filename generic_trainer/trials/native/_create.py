"""`create`: an experiment of a trial class, started by a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from generic_trainer.trials._seed import seed_generators
from generic_trainer.trials._trial import Trial, current
from generic_trainer.trials.native._configs import local_run
from generic_trainer.trials.native._init import Call
from generic_trainer.trials.native._loading import StopLoadingImplementation, run_to_load
from generic_trainer.trials.native._local import try_one_batch
from generic_trainer.trials.native._mode import Mode
from generic_trainer.trials.native._submit import submit_experiment

__all__ = ["create", "create_trial_instance"]


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
        local: whether to run here.
        test: whether to train one batch only.
        context_dir: the folder with the code.
        command: the script in it and its arguments.
        master_url: the cluster's address.
        mode: in place of `local` and `test`.

    Returns:
        The job's name on the cluster; None after a local test.

    Raises:
        NotImplementedError: `local` without `test`.
        InvalidExperimentException: `context_dir` is empty, or `command` is needed.
    """
    call = Call.of(config, local, test, context_dir, command, master_url, mode)
    run = run_to_load()
    if run is not None:
        raise StopLoadingImplementation(trial_def.open_controller(run))
    if not call.here:
        return submit_experiment(
            call.config, call.test, call.context_dir, call.command, call.master_url
        )
    run = local_run(call.config)
    with current(run):
        try_one_batch(trial_def.open_controller(run))
    return None


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
    run = local_run({**(config or {}), **({"hyperparameters": hparams} if hparams else {})})
    run = dataclasses.replace(run, checkpoint_dir=checkpoint_dir)
    seed_generators(run.seed)
    context_class = getattr(trial_def, "trial_context_class", None)
    return trial_def(context_class(run) if context_class else dict(run.hparams))  # type: ignore[call-arg]
