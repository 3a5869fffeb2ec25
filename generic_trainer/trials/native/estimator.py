"""`estimator.init`: an estimator trained by a script, without a trial class.

::

    from generic_trainer.trials.native import estimator

    context = estimator.init(config, local=True, test=True)
    optimizer = context.wrap_optimizer(make_optimizer(context.get_hparam("learning_rate")))
    context.train_and_evaluate(make_estimator(optimizer), train_spec, eval_spec)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from generic_trainer.trials._slots import fit_to_devices
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.estimator._native import EstimatorNativeContext
from generic_trainer.trials.native._init import Call, Start
from generic_trainer.trials.native._init import init as _init
from generic_trainer.trials.native._mode import Mode

__all__ = ["EstimatorNativeContext", "init"]


def init(
    config: Mapping[str, Any] | None = None,
    local: bool | Mode | str = False,
    test: bool = False,
    context_dir: str = "",
    command: Sequence[str] | None = None,
    master_url: str | None = None,
    *,
    mode: Mode | str | None = None,
) -> EstimatorNativeContext:
    """Returns the context to train an estimator by.

    Args:
        config: the experiment configuration.
        local: whether to run here; then `test` must be True.
        test: whether to train one batch only, to see that everything fits together.
        context_dir: the folder with the code, which is sent to the cluster.
        command: the script in it and its arguments; by default the script that runs now.
        master_url: the cluster's address, `http://head:8265`; by default the environment variable
            DET_MASTER.
        mode: a `Mode` or its value, as release 0.12 had it in place of `local` and `test`.

    Raises:
        NotImplementedError: `local` without `test`.
        InvalidExperimentException: `context_dir` is empty, or `command` is needed.
        SystemExit: with 0, once the experiment is submitted.
    """
    return _init(
        _make_context, Call.of(config, local, test, context_dir, command, master_url, mode)
    )


def _make_context(run: TrialRun, start: Start, code: str | None) -> EstimatorNativeContext:
    run, strategy = fit_to_devices(run)
    context = EstimatorNativeContext(run)
    context.on_train(start, strategy=strategy if run.slots > 1 else None, code=code)
    return context
