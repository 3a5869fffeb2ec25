"""Constants, ranges, samples and grids."""

import numpy as np
import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials import Categorical, Constant, Double, Integer, Log
from generic_trainer.trials._hyperparameters import grid, parse_hyperparameters, sample


def test_ranges_and_constants_are_told_apart():
    found = parse_hyperparameters(
        {
            "bare": 3,
            "const": {"type": "const", "val": "x"},
            "units": {"type": "int", "minval": 1, "maxval": 4},
            "dropout": {"type": "double", "minval": 0.0, "maxval": 0.5},
            "rate": {"type": "log", "minval": -4, "maxval": -2, "base": 10},
            "kind": {"type": "categorical", "vals": ["a", "b"]},
            "optimizer": {"name": "adam"},
        }
    )
    assert found == {
        "bare": Constant(3),
        "const": Constant("x"),
        "units": Integer(1, 4),
        "dropout": Double(0.0, 0.5),
        "rate": Log(-4, -2, 10),
        "kind": Categorical(["a", "b"]),
        "optimizer": Constant({"name": "adam"}),
    }


def test_ranges_within_mappings_are_drawn_too():
    written = {
        "optimizer": {"name": "adam", "rate": Log(-4, -2), "deep": {"k": Constant(5)}},
        "kind": Categorical(["a"]),
    }
    drawn = sample(parse_hyperparameters(written), seed=1)
    assert drawn["optimizer"].pop("rate") == pytest.approx(1e-3, rel=9.01)
    assert drawn == {"kind": "a", "optimizer": {"name": "adam", "deep": {"k": 5}}}


def test_grids_have_the_points_of_ranges_within_mappings():
    parsed = parse_hyperparameters({"a": {"b": Integer(1, 2), "c": {"d": Categorical("xy")}}})
    points = [point["a"] for point in grid(parsed)]
    assert points == [{"b": b, "c": {"d": d}} for b in (1, 2) for d in "xy"]


@pytest.mark.parametrize(
    "own",
    [
        {"of": {"type": "adam", "rate": 0.1}},
        {"of": {"type": "int"}},
        {"of": {"type": "int", "count": 3}},
        {"of": {"type": "log", "base": 2}},
        {1: {"type": None}},
        {},
    ],
)
def test_a_mapping_of_ones_own_stays_as_it_is(own):
    assert parse_hyperparameters({"own": own}) == {"own": Constant(own)}


def test_an_array_within_a_mapping_stays_as_it_is():
    array = np.ones(2)
    parsed = parse_hyperparameters({"a": {"b": array, "c": Constant(array)}})
    drawn = sample(parsed, seed=1)["a"]
    assert drawn["b"] is array and drawn["c"] is array


def test_a_wrong_range_within_a_mapping_is_told_with_its_path():
    with pytest.raises(ConfigurationError, match=r"a\.b\.c: minval 3 is above maxval 1"):
        parse_hyperparameters({"a": {"b": {"c": Integer(3, 1)}}})


def test_samples_follow_the_seed_and_stay_within_their_ranges():
    ranges = {
        "units": Integer(1, 3),
        "dropout": Double(0.25, 0.5),
        "rate": Log(-4, -2),
        "kind": Categorical(("a", "b")),
    }
    samples = [sample(ranges, seed) for seed in range(200)]
    assert samples == [sample(ranges, seed) for seed in range(200)]
    assert {drawn["units"] for drawn in samples} == {1, 2, 3}  # both ends included
    assert {drawn["kind"] for drawn in samples} == {"a", "b"}
    assert all(0.25 <= drawn["dropout"] <= 0.5 for drawn in samples)
    assert all(1e-4 <= drawn["rate"] <= 1e-2 for drawn in samples)
    assert 60 < sum(drawn["rate"] < 1e-3 for drawn in samples) < 140  # uniform in the exponent


def test_a_grid_is_every_combination():
    points = grid(
        {
            "units": Integer(1, 9, count=3),
            "rate": Log(-2, -1, count=2),
            "kind": Categorical(["a", "b"]),
            "seed": Constant(7),
        }
    )
    found = [(p["kind"], p["rate"], p["seed"], p["units"]) for p in points]
    assert len(found) == 12
    assert found[:3] == [("a", 0.01, 7, 1), ("a", 0.01, 7, 5), ("a", 0.01, 7, 9)]


def test_an_integer_range_has_no_more_points_than_numbers():
    expected = [{"units": 1}, {"units": 2}, {"units": 3}]
    assert list(grid({"units": Integer(1.0, 3.0, count=10)})) == expected
    assert list(grid({"units": Integer(1, 3)})) == expected


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"type": ["int"]}, "type must be one of"),
        ({"type": "integer"}, r"did you mean 'int'\?"),
        ({"type": "categorical", "vals": 5}, "vals must be a list"),
        ({"type": "categorical", "vals": []}, "must not be empty"),
        ({"type": "int", "minval": 4, "maxval": 1}, "minval 4 is above maxval 1"),
        ({"type": "double", "min": 1, "max": 2}, "takes minval, maxval"),
        ({"type": "int", "minval": 0.5, "maxval": 2}, "minval must be a whole number"),
        ({"type": "double", "minval": 0, "maxval": "2"}, "maxval must be a number"),
        ({"type": "double", "minval": float("nan"), "maxval": 2}, "minval must be a number"),
        ({"type": "double", "minval": 0, "maxval": 1, "count": 10**12}, "count must be"),
        ({"type": "log", "minval": 0, "maxval": 10**4}, "to the power of"),
        ({"type": "log", "minval": -0.5, "maxval": 1, "base": -3}, "to the power of"),
    ],
)
def test_ranges_that_nothing_can_be_drawn_from_are_refused(value, told):
    with pytest.raises(ConfigurationError, match=told):
        parse_hyperparameters({"x": value})


@pytest.mark.parametrize("endless", [Double(0, 1), Integer(0, 10**11)])
def test_a_grid_needs_a_number_of_points_that_memory_holds(endless):
    with pytest.raises(ConfigurationError, match=r"needs `count`, the .* from 1 to 1,000,000"):
        next(grid({"x": endless}))


def test_all_problems_are_told_at_once_also_of_names():
    with pytest.raises(ConfigurationError, match="names that are texts, found None of") as caught:
        parse_hyperparameters({None: 1, "units": 2, "x": {"type": "uniform"}})
    assert len(caught.value.problems) == 2
