"""`EstimatorTrial`, an estimator with its data, trained by the trial loop.

The names are those of `determined.estimator`. `tf.estimator` itself comes from
`generic_trainer.estimator`: ``from generic_trainer.estimator import tf``.
"""

from generic_trainer.trials._gone import naming_successors
from generic_trainer.trials.estimator._context import (
    EstimatorContext,
    EstimatorExperimentalContext,
    EstimatorTrialContext,
    MetricReducer,
)
from generic_trainer.trials.estimator._controller import RunHook
from generic_trainer.trials.estimator._trial import (
    EstimatorNativeContext,
    EstimatorTrial,
    ServingInputReceiverFn,
    init,
)

# A name of PEDL, which `trials.tensorflow` has.
from generic_trainer.trials.estimator._trial import HparamsEstimatorTrial as HparamsEstimatorTrial

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

__getattr__ = naming_successors(__name__)
