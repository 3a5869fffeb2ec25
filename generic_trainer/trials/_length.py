"""How long training goes on, in the units of an experiment configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from generic_trainer.errors import ConfigurationError

__all__ = ["Length"]

_UNITS = ("batches", "records", "epochs")


@dataclasses.dataclass(frozen=True)
class Length:
    """A number of batches, records or epochs.

    Attributes:
        count: how many.
        unit: "batches", "records" or "epochs".
    """

    count: int
    unit: str = "batches"

    @classmethod
    def parse(cls, field: str, value: Any, *, batches_per_unit: int = 1) -> Length:
        """Reads `{"epochs": 3}`, or a bare number of steps, as the first releases had it.

        Args:
            field: the configuration's field, for messages.
            value: what it holds.
            batches_per_unit: how many batches a bare number stands for.

        Raises:
            ConfigurationError: it is neither, or negative.
        """
        if isinstance(value, Mapping) and len(value) == 1:
            [(unit, count)] = value.items()
            if unit in _UNITS and _is_count(count):
                return cls(int(count), unit)
        elif _is_count(value):
            return cls(int(value) * batches_per_unit)
        raise ConfigurationError(
            f"{field} must be a whole number or one of "
            f"{', '.join(f'{{{unit!r}: number}}' for unit in _UNITS)}, but got {value!r}"
        )

    def to_batches(self, global_batch_size: int, records_per_epoch: int) -> int:
        """Returns the number of whole batches.

        Raises:
            ConfigurationError: epochs were given, and nothing says how long an epoch is.
        """
        if self.unit == "batches":
            return self.count
        if self.unit == "records":
            return self.count // global_batch_size
        if records_per_epoch <= 0:
            raise ConfigurationError(
                f"{{'epochs': {self.count}}} needs records_per_epoch, the number of training "
                "records, at the top level of the experiment configuration"
            )
        return self.count * records_per_epoch // global_batch_size


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
