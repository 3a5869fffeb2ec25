"""What PEDL's trials call as functions, where Determined's call a context."""

import contextvars
from typing import Any

from generic_trainer.errors import ConfigurationError

# The context of the trial that is being built, or trains.
running: contextvars.ContextVar[Any] = contextvars.ContextVar("pedl_trial_context")


def wrap_dataset(dataset: Any) -> Any:
    """Returns this process's share of the data of the running trial."""
    return _context().wrap_dataset(dataset)


def wrap_optimizer(optimizer: Any) -> Any:
    """Returns the optimizer; an `EstimatorTrial` must call it once at least."""
    return _context().wrap_optimizer(optimizer)


def _context() -> Any:
    try:
        return running.get()
    except LookupError:
        raise ConfigurationError(
            "wrap_dataset and wrap_optimizer are for the methods of a trial of PEDL, for "
            "make_data_loaders, and for functions that these call."
        ) from None
