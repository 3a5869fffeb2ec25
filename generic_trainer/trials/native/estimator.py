"""`estimator.init`: an estimator that a script trains, without a trial class.

::

    from generic_trainer.trials.native import estimator

    context = estimator.init(config, local=True, test=True)
    optimizer = context.wrap_optimizer(make_optimizer(context.get_hparam("learning_rate")))
    context.train_and_evaluate(make_estimator(optimizer), train_spec, eval_spec)
"""

from __future__ import annotations

from generic_trainer.trials._process import fit_to_devices
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.estimator._native import EstimatorNativeContext
from generic_trainer.trials.native._start import Init, Start

__all__ = ["EstimatorNativeContext", "init"]


def _make_context(run: TrialRun, start: Start, code: str | None) -> EstimatorNativeContext:
    run, strategy = fit_to_devices(run)
    context = EstimatorNativeContext(run)
    context.on_train(start, strategy=strategy if run.slots > 1 else None, code=code)
    return context


init = Init(_make_context)
