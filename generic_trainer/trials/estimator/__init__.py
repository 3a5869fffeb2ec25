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

_HOMES = {
    "_context": (
        "EstimatorContext",
        "EstimatorExperimentalContext",
        "EstimatorTrialContext",
        "MetricReducer",
    ),
    "_controller": ("RunHook",),
    "_native": ("EstimatorNativeContext", "init"),
    "_trial": ("EstimatorTrial", "ServingInputReceiverFn"),
}

__getattr__, __dir__ = lazy_names(
    __name__,
    {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names},
)
