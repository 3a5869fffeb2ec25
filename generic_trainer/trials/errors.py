"""What goes wrong in trials, to be caught: `det.errors` of Determined.

::

    import generic_trainer.trials as det

    try:
        model.fit(x, y)
    except det.errors.InvalidExperimentException:
        ...
"""

from __future__ import annotations

from generic_trainer.trials._errors import (
    CheckFailedError,
    InvalidArgumentsError,
    InvalidDataTypeException,
    InvalidExperimentException,
)

__all__ = [
    "CheckFailedError",
    "InvalidArgumentsError",
    "InvalidDataTypeException",
    "InvalidExperimentException",
]
