"""The experiment configuration."""

import re
from types import SimpleNamespace

import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials._algorithms import ALGORITHMS, Length
from generic_trainer.trials._config import log_unused, parse_experiment
from generic_trainer.trials._pipeline import experiment_config, tuned_values
from tests.house import ROOT


def test_defaults():
    experiment = parse_experiment({"searcher": {"max_length": {"batches": 5}}})
    assert (experiment.searcher.name, experiment.searcher.smaller_is_better) == ("single", True)
    assert (experiment.scheduling_unit, experiment.checkpoint_policy) == (100, "best")
    assert experiment.reproducibility.experiment_seed == 0
    assert experiment.resources.slots_per_trial == 1
    assert not (experiment.min_validation_period or experiment.perform_initial_validation)


def test_steps_of_the_first_releases_are_scheduling_units():
    experiment = parse_experiment(
        {"batches_per_step": 20, "min_validation_period": 3, "searcher": {"max_steps": 10}}
    )
    assert experiment.scheduling_unit == 20
    lengths = experiment.searcher.max_length, experiment.min_validation_period
    assert lengths == (Length(200), Length(60))


def documented_searchers():
    """Returns (name, fields that it needs, fields that it may have) of each row of the document."""
    text = (ROOT / "docs" / "trial-configuration.md").read_text(encoding="utf-8")
    rows = text.partition("| `searcher.name` |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[set(re.findall(r"\w+", cell)) for cell in row.split("|")[1:4]] for row in rows]


def test_all_searchers_are_documented():
    assert set().union(*(name for name, _, _ in documented_searchers())) == {*ALGORITHMS}


@pytest.mark.parametrize(("name", "needed", "optional"), documented_searchers())
def test_a_searcher_takes_the_fields_that_are_documented(name, needed, optional, caplog):
    [name] = name
    compares = name != "single"
    given = {"metric": "loss", "smaller_is_better": True, "max_concurrent_trials": 1}
    given |= {"max_length": 1, "budget": 1, "max_trials": 1, "num_rungs": 1, "divisor": 2}
    given |= {"mode": "standard", "max_rungs": 1, "bracket_rungs": [1], "train_stragglers": True}
    log_unused(parse_experiment({"searcher": {"name": name, **given}}), is_job=False)
    [record] = caplog.records
    unused = set(re.findall(r"searcher\.(\w+)", record.getMessage()))
    compared = {"metric", "max_concurrent_trials"} if compares else {"metric"}
    assert given.keys() - unused == needed | optional | compared | {"smaller_is_better"}
    with pytest.raises(ConfigurationError) as caught:
        parse_experiment({"searcher": {"name": name}})
    missing = set(re.findall(r"searcher\.(\w+) is needed", str(caught.value)))
    assert missing == needed | ({"metric"} if compares else set())


@pytest.mark.parametrize(
    ("length", "batches"),
    [(Length(20, "records"), 1), (Length(99, "records"), 3), (Length(3, "epochs"), 9)],
)
def test_lengths_become_whole_batches(length, batches):
    assert length.to_batches(global_batch_size=32, records_per_epoch=100) == batches


def test_epochs_need_to_know_how_long_one_is():
    with pytest.raises(ConfigurationError, match="records_per_epoch"):
        Length(3, "epochs").to_batches(32, 0)


# What is wrong, and what is said of it.
WRONG = [
    ({"searcher": "random"}, "searcher must be a mapping, got 'random' of type str"),
    ({"records_per_epoch": "many"}, "records_per_epoch must be a whole number, got 'many'"),
    ({"resources": {"slots_per_trial": -1}}, "slots_per_trial must be greater than or equal to 0"),
    ({"reproducibility": {"experiment_seed": float("inf")}}, "must be a whole number, got inf"),
    ({"searcher": {"max_trials": 10**9}}, "max_trials must be less than or equal to 1000000, got"),
    ({"searcher": {"smaller_is_better": "no"}}, "smaller_is_better must be True or False, got"),
    ({"searcher": {"name": "adaptve"}}, "got 'adaptve' of type str (did you mean 'adaptive'?)"),
    ({"searcher": {"max_lenght": 1}}, "Searcher has no field 'max_lenght' (did you mean 'max_l"),
    ({"min_validation_period": {"hours": 1}}, "{'records': number}, {'epochs': number}, got"),
    ({"optimizations": {"aggregation_frequency": 0}}, "aggregation_frequency must be 1, because"),
    ({"optimizations": {"aggregation_frequency": 2}}, "multiply global_batch_size by it instead"),
    (
        {"recrods_per_epoch": 5},
        "ExperimentSettings has no field 'recrods_per_epoch' (did you mean 'rec",
    ),
    ({"hyperparameters": {"a": {"type": "uniform"}}}, "type must be one of const, categorical"),
    ({"checkpoint_policy": "worst"}, "checkpoint_policy must be 'best', 'all' or 'none', got"),
    ({"searcher": {"name": "grid"}}, "searcher.metric is needed: the validation metric"),
    ({"searcher": {"name": "pbt", "metric": "a"}}, "'async_halving', got 'pbt'"),
    ({}, "searcher.max_length is needed: such as {'batches': 1000}"),
    ({"searcher": {"bracket_rungs": [1, 0]}}, "bracket_rungs[1] must be greater than or equal to"),
    ({"checkpoint_storage": {"type": ["s3"]}}, "checkpoint_storage.type must be a string, got"),
    ({"environment": {"environment_variables": {"A": "1"}}}, "must be a list of 'NAME=value', or"),
    (
        {"searcher": {"name": "adaptive", "metric": "a", "max_steps": 3, "budget": {"epochs": 9}}},
        "searcher.budget must have the unit of the length of a trial, batches, got epochs",
    ),
    ({"searcher": {"source_trial_id": 3}}, "source_trial_id must be left out (the model of"),
    ({"searcher": {"max_time": 9}}, "max_time must be left out (max_length, such as"),
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
    assert len(caught.value.problems) == 12


def test_numbers_may_be_written_as_texts_and_as_floats():
    config = {"records_per_epoch": 1e3, "reproducibility": {"experiment_seed": "3"}}
    found = parse_experiment({**config, "searcher": {"max_length": {"batches": "5"}}})
    assert (found.records_per_epoch, found.searcher.max_length) == (1000, Length(5))
    assert found.reproducibility.experiment_seed == 3


def test_fields_without_a_meaning_here_are_named_once(caplog):
    config = {
        "description": "x",
        "bind_mounts": [{"host_path": "/data"}],
        "profiling": {"enabled": True},  # as other fields of later releases
        "workspace": "Uncategorized",
        "checkpoint_storage": {"type": "gcs"},
        "optimizations": {"gradient_compression": True, "mixed_precision": "O0"},
        "resources": {"agent_label": "", "priority": 3},
        "searcher": {"name": "single", "max_trials": 5, "max_steps": 3, "stop_once": True},
    }
    log_unused(parse_experiment(config), is_job=False)
    [record] = caplog.records
    assert record.getMessage().endswith(
        ": bind_mounts, checkpoint_storage, optimizations.gradient_compression, "
        "profiling, resources.priority, searcher.max_trials, searcher.stop_once, "
        "workspace"
    )


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"a: [1", b"- 1"])
def test_a_configuration_that_cannot_be_read_is_told_with_its_path(tmp_path, content):
    path = tmp_path / "experiment.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    fn_args = SimpleNamespace(custom_config={"experiment_config": str(path)})
    with pytest.raises(ConfigurationError) as caught:
        experiment_config(fn_args, None)
    assert caught.value.path == str(path)


def test_fields_beside_the_whole_configuration_are_refused():
    fn_args = SimpleNamespace(custom_config={"experiment_config": {}, "searcher": {}, "mine": 1})
    with pytest.raises(ConfigurationError, match="has searcher beside experiment_config"):
        experiment_config(fn_args, None)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (None, {}),
        ({"units": 3}, {"units": 3}),
        ({"space": [], "values": {"units": 3}}, {"units": 3}),
        ({"values": 5}, {"values": 5}),
    ],
)
def test_hyperparameters_are_those_of_the_component(given, values):
    assert tuned_values(SimpleNamespace(hyperparameters=given)) == values


@pytest.mark.parametrize("tuned", ["x", [1]])
def test_what_no_tuner_has_written_is_refused(tuned):
    with pytest.raises(ConfigurationError, match="HyperParameters"):
        tuned_values(SimpleNamespace(hyperparameters=tuned))
