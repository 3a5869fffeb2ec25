"""From the hyperparameter `global_batch_size` to what each device takes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from generic_trainer.trials._errors import CheckFailedError, InvalidArgumentsError

__all__ = ["BatchSizes"]

_NAME = "global_batch_size"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class BatchSizes:
    """Records in a training step.

    Attributes:
        of_all: on all slots together.
        per_slot: what the user's code batches by.
    """

    of_all: int
    per_slot: int

    @classmethod
    def of(
        cls, hparams: Mapping[str, Any], slots: int, *, native_parallel: bool = False
    ) -> BatchSizes:
        """Divides the batch by the slots, rounding down.

        Args:
            hparams: has `global_batch_size`.
            slots: devices of the trial.
            native_parallel: the user's code batches by the global size, and batches are divided.

        Raises:
            InvalidArgumentsError: there is no `global_batch_size`, or it is below the slots.
            CheckFailedError: it is no whole number.
        """
        size = _global_batch_size(hparams, slots)
        effective = size // slots * slots
        if effective != size:
            _logger.warning(
                "`global_batch_size` changed from %d to %d to divide equally across %d slots.",
                size,
                effective,
                slots,
            )
        return cls(effective, effective if native_parallel else effective // slots)


def _global_batch_size(hparams: Mapping[str, Any], slots: int) -> int:
    if _NAME not in hparams:
        raise InvalidArgumentsError(
            f"Please specify `{_NAME}` under `hyperparameters` in experiment config."
        )
    if "batch_size" in hparams:
        _logger.warning(
            "Use `%s` not `batch_size` under `hyperparameters` in experiment config.", _NAME
        )
    size = hparams[_NAME]
    if not isinstance(size, int) or isinstance(size, bool):
        raise CheckFailedError(f"`{_NAME}` hparam must be an int, but got {size!r}.")
    if size < slots or size < 1:
        raise InvalidArgumentsError(
            f"Please set the `{_NAME}` hyperparameter to be greater or equal to the number of "
            f"slots. Current batch_size: {size}, slots_per_trial: {slots}."
        )
    return size
