"""`TFKerasTrial`, a compiled Keras model with its data, trained by the trial loop.

The names are those of `determined.keras`, for Keras 2 and Keras 3::

    from generic_trainer.trials.keras import TFKerasTrial, TFKerasTrialContext, callbacks
"""

from generic_trainer.trials._gone import naming_successors
from generic_trainer.trials._pedl import wrap_dataset as wrap_dataset  # for PEDL's trials
from generic_trainer.trials.keras import callbacks, data
from generic_trainer.trials.keras._context import (
    TFKerasContext,
    TFKerasExperimentalContext,
    TFKerasTrainConfig,
    TFKerasTrialContext,
)
from generic_trainer.trials.keras._data import ArrayLike, InputData, KerasInputData
from generic_trainer.trials.keras._sequence import (
    ArrayLikeAdapter,
    InMemorySequence,
    KerasDataAdapter,
    SequenceAdapter,
)
from generic_trainer.trials.keras._trial import (
    KerasFunctionalTrial,
    KerasTrial,
    TFKerasNativeContext,
    TFKerasTrial,
    init,
)
from generic_trainer.trials.keras.callbacks import TFKerasTensorBoard

__all__ = [
    "ArrayLike",
    "ArrayLikeAdapter",
    "InMemorySequence",
    "InputData",
    "KerasDataAdapter",
    "KerasFunctionalTrial",
    "KerasInputData",
    "KerasTrial",
    "SequenceAdapter",
    "TFKerasContext",
    "TFKerasExperimentalContext",
    "TFKerasNativeContext",
    "TFKerasTensorBoard",
    "TFKerasTrainConfig",
    "TFKerasTrial",
    "TFKerasTrialContext",
    "callbacks",
    "data",
    "init",
]

# Scripts that Determined shipped import the name with the underscore.
_ArrayLikeAdapter = ArrayLikeAdapter

__getattr__ = naming_successors(__name__)
