"""Axes of charts: where a value is drawn, round ticks, and how much of the range is left out."""

import dataclasses
import math
from collections.abc import Iterable

_TICKS = 4  # about so many steps between the ticks of an axis
_LOG_RATIO = 20.0  # values that span more than this may have a logarithmic axis
_SAME = 1e-12  # values with a smaller ratio are drawn as one
_LEAST = 1e-300  # and those with a smaller difference
_CUT = 0.5  # an axis begins at zero, unless that took more than this share of it


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Attributes:
        low, high: its ends; on a logarithmic axis, of the logarithms.
        ticks: the places of its ticks, from 0 at the low end to 1, and their labels.
        note: `"logarithmic"`, `"cut"` if the axis leaves out zero, or empty.
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    note: str = ""

    @classmethod
    def of(cls, values: Iterable[float], *, may_be_log: bool = False, cut: bool = True) -> "Axis":
        """Returns an axis with room for finite values, of which there is at least one.

        Args:
            values: the values.
            may_be_log: make it logarithmic if positive values span much.
            cut: leave out zero if all values are far from it.
        """
        values = list(values)
        low = min(values)
        high = max(values)
        if may_be_log and low > 0 and high / low > _LOG_RATIO:
            return cls._logarithmic(low, high)
        is_cut = cut and low * high > 0 and high - low < _CUT * max(abs(low), abs(high))
        if not is_cut:
            low = min(0.0, low)
            high = max(0.0, high)
        largest = max(abs(low), abs(high))
        if high - low <= max(_LEAST, _SAME * largest):
            low = low - largest / 2
            high = high + (largest / 2 if largest > _LEAST else 1.0)
        step = 10.0 ** math.floor(math.log10((high - low) / _TICKS))
        step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= _TICKS)
        first = math.floor(low / step + 1e-9)
        last = math.ceil(high / step - 1e-9)
        count = max(1, last - first)
        ticks = tuple((n / count, number((first + n) * step)) for n in range(count + 1))
        return cls(first * step, (first + count) * step, ticks, "cut" if is_cut else "")

    @classmethod
    def _logarithmic(cls, low: float, high: float) -> "Axis":
        low = math.log10(low)
        high = math.log10(high)
        factors = (1, 2, 5) if high - low < _TICKS / 2 else (1,)
        powers = range(math.floor(low), math.ceil(high) + 1, 1 + int((high - low) / (2 * _TICKS)))
        round_ones = (math.log10(factor) + power for power in powers for factor in factors)
        ticks = tuple(
            ((value - low) / (high - low), number(10**value))
            for value in round_ones
            if low <= value <= high
        )
        return cls(low, high, ticks, "logarithmic")

    def share(self, value: float) -> float:
        """Returns the place of a value, from 0 at the low end to 1."""
        scaled = math.log10(value) if self.note == "logarithmic" else value
        return (scaled - self.low) / (self.high - self.low)


def number(value: float) -> str:
    """Returns a number as all pages write it: "1,200", "0.0125", "3.2e+09"."""
    return f"{value:,.6g}"
