"""The experiment configuration."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials._config import Length, parse_experiment, read_yaml
from generic_trainer.trials._fields import log_unused
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


# What is wrong, and what is said of it.
WRONG = [
    ({"hyperparameters": [1]}, "hyperparameters must be a mapping, got [1] of type list"),
    ({"searcher": "random"}, "searcher must be a mapping, got 'random' of type str"),
    ({"records_per_epoch": "many"}, "records_per_epoch must be a whole number, 0 or above"),
    ({"scheduling_unit": True}, "scheduling_unit must be a whole number above 0, got True"),
    ({"resources": {"slots_per_trial": "two"}}, "resources.slots_per_trial must be a whole number"),
    ({"resources": {"slots_per_trial": -1}}, "slots_per_trial must be a whole number, 0 or above"),
    ({"resources": "two"}, "resources must be a mapping, got 'two'"),
    ({"reproducibility": {"experiment_seed": "x"}}, "experiment_seed must be a whole number, got"),
    ({"reproducibility": {"experiment_seed": float("inf")}}, "must be a whole number, got inf"),
    (
        {"searcher": {"max_trials": "x"}},
        "searcher.max_trials must be a whole number from 1 to 1,000,",
    ),
    (
        {"searcher": {"max_concurrent_trials": -1}},
        "trials must be a whole number, 0 or above",
    ),
    ({"searcher": {"max_concurrent_trials": "four"}}, "max_concurrent_trials must be a whole"),
    ({"searcher": {"smaller_is_better": "no"}}, "smaller_is_better must be true or false, got"),
    ({"searcher": {"source_trial_id": "x"}}, "searcher.source_trial_id must be a whole number"),
    ({"searcher": {"name": "adaptve"}}, "got 'adaptve' of type str (did you mean 'adaptive'?)"),
    ({"searcher": {"mode": "fast"}}, "must be one of conservative, standard, aggressive, got"),
    ({"searcher": {"max_lenght": 1}}, "searcher.max_lenght is no field of it (did you mean 'max_l"),
    ({"min_validation_period": {"hours": 1}}, "{'records': number}, {'epochs': number}, got"),
    ({"optimizations": {"aggregation_frequency": 0}}, "aggregation_frequency must be a whole nu"),
    ({"recrods_per_epoch": 5}, "recrods_per_epoch is no field of it (did you mean 'records_per_e"),
    ({"hyperparameters": {"a": {"type": "uniform"}}}, "type must be one of const, categorical"),
    ({"checkpoint_policy": "worst"}, "checkpoint_policy must be one of best, all, none"),
    ({"searcher": {"name": "grid"}}, "searcher.metric is needed: the validation metric"),
    ({"searcher": {"name": "pbt", "metric": "a"}}, "searcher.num_rounds is needed: the searcher"),
    ({}, "searcher.max_length is needed: such as {'batches': 1000}"),
    ({"searcher.metric": "loss"}, "searcher.metric is no field of it"),
    ({"reproducibility": {"experiment_seed": True}}, "must be a whole number, got True"),
    ({"searcher": {"max_rungs": 10**9}}, "searcher.max_rungs must be a whole number from 1 to 100"),
    ({"searcher": {"bracket_rungs": [1, 0]}}, "a list with a whole number from 1 to 100 each, got"),
    ({"data_layer": {"typ": "s3"}}, "data_layer.typ is no field of it (did you mean 'type'?)"),
    (
        {"data_layer": {"host_storage_path": 5}},
        "data_layer.host_storage_path must be a text, got 5",
    ),
    (
        {"checkpoint_storage": {"type": ["s3"]}},
        "checkpoint_storage.type must be a text, got ['s3']",
    ),
    ({"environment": {"environment_variables": {"A": "1"}}}, "must be a list of 'NAME=value', or"),
    (
        {"searcher": {"name": "adaptive", "metric": "a", "max_steps": 3, "budget": {"epochs": 9}}},
        "searcher.budget must have the unit of the length of a trial, batches, got epochs",
    ),
]


@pytest.mark.parametrize(("config", "said"), WRONG)
def test_a_value_of_the_wrong_kind_is_told_with_its_place(config, said):
    with pytest.raises(ConfigurationError) as caught:
        parse_experiment(config)
    assert any(said in problem for problem in caught.value.problems or [str(caught.value)])


def test_all_problems_are_told_at_once():
    config = {name: value for given, _ in WRONG for name, value in given.items()}
    config["searcher"] = {"name": "random", "max_trials": "y", "x": 1}
    with pytest.raises(ConfigurationError) as caught:
        parse_experiment(config)
    assert len(caught.value.problems) == 17


def test_numbers_may_be_written_as_texts_and_as_floats():
    found = parse_experiment(
        {"records_per_epoch": 1e3, "reproducibility": {"experiment_seed": "3"}},
        Length(5),
    )
    assert (found.records_per_epoch, found.seed, found.searcher.max_length) == (1000, 3, Length(5))


def test_fields_without_a_meaning_here_are_named_once(caplog):
    config = {
        "description": "x",
        "bind_mounts": [{"host_path": "/data"}],
        "checkpoint_storage": {"type": "gcs"},
        "optimizations": {"gradient_compression": True, "mixed_precision": "O0"},
        "resources": {"agent_label": "", "priority": 3},
        "searcher": {"name": "single", "max_trials": 5, "max_steps": 3},
    }
    log_unused(config, is_job=False)
    [record] = caplog.records
    assert record.getMessage().endswith(
        ": bind_mounts, checkpoint_storage, optimizations.gradient_compression, "
        "resources.priority, searcher.max_trials"
    )


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"a: [1", b"- 1"])
def test_a_configuration_that_cannot_be_read_is_told_with_its_path(tmp_path, content):
    path = tmp_path / "experiment.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    fn_args = SimpleNamespace(custom_config={"experiment_config": str(path)})
    with pytest.raises(ConfigurationError) as caught:
        experiment_config(fn_args, None)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("tuned", ["x", [1], {"values": 5}])
def test_what_no_tuner_has_written_is_refused(tuned):
    with pytest.raises(ConfigurationError, match="HyperParameters"):
        tuned_values(SimpleNamespace(hyperparameters=tuned))
