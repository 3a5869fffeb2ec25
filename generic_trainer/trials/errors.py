"""Errors of code written for Determined's trials, under the names that it may catch: `det.errors`.

::

    ConfigurationError (ValueError)
    ├── CheckFailedError              a rule of the trial API is broken
    ├── InvalidArgumentsError         the same, where the original asserted (AssertionError)
    ├── InvalidExperimentException    the order of calls or the configuration cannot work
    │   └── InvalidDataTypeException  a data loader returned something else than data
    └── InvalidHP                     raised by a trial: its hyperparameters cannot work

    import generic_trainer.trials as det

    try:
        model.fit(x, y)
    except det.errors.InvalidExperimentException:
        ...

The original of `InvalidExperimentException` derives from `BaseException`, which `except Exception`
misses; this one does not.
"""

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials._gone import naming_successors

__all__ = [
    "CheckFailedError",
    "InvalidArgumentsError",
    "InvalidDataTypeException",
    "InvalidExperimentException",
    "InvalidHP",
]


class CheckFailedError(ConfigurationError):
    """A rule of the trial API is broken."""


class InvalidArgumentsError(ConfigurationError, AssertionError):
    """A rule was not kept that the original asserted, so that code may expect AssertionError."""


class InvalidExperimentException(ConfigurationError):
    """Calls came in an order, or with a configuration, that cannot work."""


class InvalidDataTypeException(InvalidExperimentException):
    """A data loader returned something that cannot be trained on."""


class InvalidHP(ConfigurationError):
    """Code of a trial raises it if the trial's hyperparameters cannot work together.

    The trial ends without a restart, and the search continues with the others.
    """


__getattr__ = naming_successors(__name__)
