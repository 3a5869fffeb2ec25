"""The experiment configuration."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials._config import Length, parse_experiment, read_yaml
from generic_trainer.trials._pipeline import experiment_config, tuned_values


def test_floats_are_read_as_yaml_1_2_has_them():
    found = read_yaml("{rate: 1e-4, big: 2E+3, point: .5, count: 12, version: 1.2.3, minus: -3e2}")
    assert found == {
        "rate": 1e-4,
        "big": 2000.0,
        "point": 0.5,
        "count": 12,
        "version": "1.2.3",
        "minus": -300.0,
    }
    assert isinstance(found["count"], int)


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2", ""])
def test_a_file_that_is_no_mapping_is_refused(text):
    with pytest.raises(ConfigurationError, match="experiment configuration"):
        read_yaml(text)


def test_defaults():
    experiment = parse_experiment({"searcher": {"max_length": {"batches": 5}}})
    assert experiment.searcher.name == "single"
    assert experiment.searcher.smaller_is_better
    assert experiment.scheduling_unit == 100
    assert experiment.checkpoint_policy == "best"
    assert (experiment.seed, experiment.slots) == (0, 1)
    assert experiment.min_validation_period is None
    assert not experiment.perform_initial_validation


def test_steps_of_the_first_releases_are_scheduling_units():
    experiment = parse_experiment(
        {"batches_per_step": 20, "min_validation_period": 3, "searcher": {"max_steps": 10}}
    )
    assert experiment.scheduling_unit == 20
    assert experiment.searcher.max_length == Length(200)
    assert experiment.min_validation_period == Length(60)


@pytest.mark.parametrize(
    ("length", "batches"),
    [(Length(7), 7), (Length(100, "records"), 3), (Length(3, "epochs"), 9), (Length(0), 0)],
)
def test_lengths_become_whole_batches(length, batches):
    assert length.to_batches(global_batch_size=32, records_per_epoch=100) == batches


def test_epochs_need_to_know_how_long_one_is():
    with pytest.raises(ConfigurationError, match="records_per_epoch"):
        Length(3, "epochs").to_batches(32, 0)


def test_all_problems_are_told_at_once():
    with pytest.raises(ConfigurationError) as caught:
        parse_experiment(
            {
                "scheduling_unit": 0,
                "min_validation_period": {"hours": 1},
                "checkpoint_policy": "worst",
                "hyperparameters": {"a": {"type": "uniform"}},
                "searcher": {"name": "adaptive"},
            }
        )
    message = str(caught.value)
    for part in (
        "scheduling_unit must be",
        "min_validation_period must be",
        "'worst'",
        "'uniform'",
        "'adaptive'",
        "searcher.max_length is needed",
    ):
        assert part in message


def test_a_search_needs_a_metric():
    with pytest.raises(ConfigurationError, match=r"searcher\.metric"):
        parse_experiment({"searcher": {"name": "grid", "max_length": 1}})


@pytest.mark.parametrize("name", ["adaptive_simple", "adaptive_asha"])
def test_a_search_that_ends_trials_early_trains_all_to_the_end(name, caplog):
    searcher = {"name": name, "metric": "loss", "max_trials": 4, "max_steps": 5}
    found = parse_experiment({"searcher": searcher}).searcher
    assert (found.name, found.max_trials, found.max_length) == ("random", 4, Length(500))
    assert f"searcher.name is {name!r}: the search is random" in caplog.text


def test_sections_and_numbers_of_other_types_are_told_at_once():
    with pytest.raises(ConfigurationError) as caught:
        parse_experiment(
            {
                "scheduling_unit": True,
                "hyperparameters": 5,
                "records_per_epoch": "many",
                "reproducibility": {"experiment_seed": float("inf")},
                "resources": [1],
                "searcher": {"name": "random", "metric": "x", "max_trials": "y", "max_length": 1},
            }
        )
    message = str(caught.value)
    for part in (
        "scheduling_unit must be",
        "hyperparameters must be a mapping",
        "records_per_epoch must be a whole number",
        "experiment_seed must be a whole number",
        "resources must be a mapping",
        "searcher.max_trials must be a whole number",
    ):
        assert part in message


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"a: [1", b"- 1"])
def test_a_configuration_that_cannot_be_read_is_told_with_its_path(tmp_path, content):
    path = tmp_path / "experiment.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    fn_args = SimpleNamespace(custom_config={"experiment_config": str(path)})
    with pytest.raises(ConfigurationError) as caught:
        experiment_config(fn_args, Length)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("tuned", ["x", [1], {"values": 5}])
def test_what_no_tuner_has_written_is_refused(tuned):
    with pytest.raises(ConfigurationError, match="HyperParameters"):
        tuned_values(SimpleNamespace(hyperparameters=tuned))
