"""`TFKerasTrial`: a compiled Keras model with its data, trained by the trial loop.

The names are those of `determined.keras`, for Keras 2 and Keras 3::

    from generic_trainer.trials.keras import TFKerasTrial, TFKerasTrialContext, callbacks
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from generic_trainer._lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.trials.keras import callbacks
    from generic_trainer.trials.keras._context import TFKerasContext, TFKerasTrialContext
    from generic_trainer.trials.keras._sequence import SequenceAdapter
    from generic_trainer.trials.keras._trial import TFKerasTrial
    from generic_trainer.trials.keras.callbacks import TFKerasTensorBoard

__all__ = [
    "SequenceAdapter",
    "TFKerasContext",
    "TFKerasTensorBoard",
    "TFKerasTrial",
    "TFKerasTrialContext",
    "callbacks",
]

_CALLBACKS = f"{__name__}.callbacks"

_load, __dir__ = lazy_names(
    __name__,
    {
        "SequenceAdapter": f"{__name__}._sequence",
        "TFKerasContext": f"{__name__}._context",
        "TFKerasTensorBoard": _CALLBACKS,
        "TFKerasTrial": f"{__name__}._trial",
        "TFKerasTrialContext": f"{__name__}._context",
        "callbacks": _CALLBACKS,
    },
)


def __getattr__(name: str) -> Any:
    return importlib.import_module(_CALLBACKS) if name == "callbacks" else _load(name)
