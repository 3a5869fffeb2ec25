"""`EstimatorTrial`: an estimator with its data, trained by the trial loop.

The names are those of `determined.estimator`. `tf.estimator` itself comes from
`generic_trainer.estimator`: ``from generic_trainer.estimator import tf``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.trials.estimator._context import (
        EstimatorContext,
        EstimatorExperimentalContext,
        EstimatorTrialContext,
    )
    from generic_trainer.trials.estimator._hooks import RunHook
    from generic_trainer.trials.estimator._native import EstimatorNativeContext
    from generic_trainer.trials.estimator._reducer import MetricReducer
    from generic_trainer.trials.estimator._trial import EstimatorTrial, ServingInputReceiverFn
    from generic_trainer.trials.native.estimator import init

__all__ = [
    "EstimatorContext",
    "EstimatorExperimentalContext",
    "EstimatorNativeContext",
    "EstimatorTrial",
    "EstimatorTrialContext",
    "MetricReducer",
    "RunHook",
    "ServingInputReceiverFn",
    "init",
]

_CONTEXT = f"{__name__}._context"
_TRIAL = f"{__name__}._trial"

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "EstimatorContext": _CONTEXT,
        "EstimatorExperimentalContext": _CONTEXT,
        "EstimatorNativeContext": f"{__name__}._native",
        "EstimatorTrial": _TRIAL,
        "EstimatorTrialContext": _CONTEXT,
        "MetricReducer": f"{__name__}._reducer",
        "RunHook": f"{__name__}._hooks",
        "ServingInputReceiverFn": _TRIAL,
        "init": "generic_trainer.trials.native.estimator",
    },
)
