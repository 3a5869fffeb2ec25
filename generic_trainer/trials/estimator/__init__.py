"""`EstimatorTrial`, an estimator with its data, trained by the trial loop.

The names are those of `determined.estimator`. `tf.estimator` itself comes from
`generic_trainer.estimator`: ``from generic_trainer.estimator import tf``.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.trials.estimator._context import (
        EstimatorContext,
        EstimatorExperimentalContext,
        EstimatorTrialContext,
        MetricReducer,
    )
    from generic_trainer.trials.estimator._controller import RunHook
    from generic_trainer.trials.estimator._native import EstimatorNativeContext, init
    from generic_trainer.trials.estimator._trial import EstimatorTrial, ServingInputReceiverFn

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

_CONTEXTS = "EstimatorContext EstimatorExperimentalContext EstimatorTrialContext"

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_context": f"{_CONTEXTS} MetricReducer",
        "_controller": "RunHook",
        "_native": "EstimatorNativeContext init",
        "_trial": "EstimatorTrial ServingInputReceiverFn",
    },
)
