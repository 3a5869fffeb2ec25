"""Axes of charts: ticks, ranges from zero, and places of values."""

import pytest

from generic_trainer._core.axes import Axis

# Values → labels of the ticks, and the note.
AXES = {
    "from zero": ([0.1, 0.9], ["0", "0.5", "1"], ""),
    "of both signs": ([-3.0, 5.0], ["-4", "-2", "0", "2", "4", "6"], ""),
    "negative": ([-10.0, -0.5], ["-10", "-5", "0"], ""),
    "far from zero": ([0.95, 0.99], ["0.94", "0.96", "0.98", "1"], "cut"),
    "one value": ([5.0], ["2", "4", "6", "8"], "cut"),
    "zero": ([0.0, 0.0], ["0", "0.5", "1"], ""),
    "nearly the same": ([1.0, 1 + 1e-15], ["0.5", "1", "1.5"], "cut"),
    "large": ([1e300, -1e299], ["-5e+299", "0", "5e+299", "1e+300"], ""),
    "hardly above zero": ([0.0, 5e-324], ["0", "0.5", "1"], ""),
}


@pytest.mark.parametrize("case", AXES)
def test_ticks_are_round_and_an_axis_without_zero_is_marked(case: str) -> None:
    values, labels, note = AXES[case]
    axis = Axis.of(values)
    assert ([label for _, label in axis.ticks], axis.note) == (labels, note)
    assert [axis.share(value) for value in values] == [
        pytest.approx((value - axis.low) / (axis.high - axis.low)) for value in values
    ]
    assert all(0 <= axis.share(value) <= 1 for value in values)
    assert axis.ticks[0][0] == 0 and axis.ticks[-1][0] == 1


def test_logarithmic_axis() -> None:
    axis = Axis.of([1.0, 1000.0], may_be_log=True)
    assert axis.note == "logarithmic"
    assert [label for _, label in axis.ticks] == ["1", "10", "100", "1,000"]
    assert axis.share(10) == pytest.approx(1 / 3)
    short = Axis.of([1.5, 40.0], may_be_log=True)
    assert [label for _, label in short.ticks] == ["2", "5", "10", "20"]
    assert len(Axis.of([1e-30, 1e30], may_be_log=True).ticks) < 10
    assert Axis.of([0.0, 1000.0], may_be_log=True).note == ""


def test_axis_of_counts_begins_at_zero_if_it_must() -> None:
    assert Axis.of([900.0, 1000.0], cut=False).ticks[0] == (0, "0")
