"""What a trial is told about itself."""

import concurrent.futures
import json
from types import SimpleNamespace

import pytest
import tensorflow as tf

from generic_trainer import trials
from generic_trainer.errors import ConfigurationError
from generic_trainer.trials import TrialContext
from generic_trainer.trials._context import fit_to_workers
from generic_trainer.trials._pipeline import in_pipeline
from generic_trainer.trials._trial import TrialRun, current
from generic_trainer.trials.errors import CheckFailedError

CONFIG = {
    "data": {"path": "/data/x.csv"},
    "hyperparameters": {
        "global_batch_size": 10,
        "units": {"type": "int", "minval": 1, "maxval": 1000},
        "rate": {"type": "log", "minval": -4, "maxval": -1, "base": 10},
    },
    "resources": {"slots_per_trial": 4},
    "reproducibility": {"experiment_seed": 7},
}


def context(slots=1, config=None, size=10, **hparams):
    hparams = {**({} if size is None else {"global_batch_size": size}), **hparams}
    return TrialContext(TrialRun(3, config=config or {}, hparams=hparams, seed=5, slots=slots))


def test_configuration_is_what_was_written_with_defaults_for_the_rest():
    found = context(config={"data": {"a": 1}, "searcher": {"name": "random"}})
    assert found.get_data_config() == {"a": 1}
    config = found.get_experiment_config()
    assert config["searcher"] == {"name": "random"}
    assert config["resources"]["slots_per_trial"] == 1
    assert config["scheduling_unit"] == 100


def test_sections_have_their_defaults_too():
    written = {
        "resources": {"native_parallel": True},
        "optimizations": {"gradient_compression": True},
        "searcher": {"metric": "loss"},
    }
    config = context(config=written).get_experiment_config()
    assert config["resources"] == {"slots_per_trial": 1, "native_parallel": True}
    assert config["optimizations"]["aggregation_frequency"] == 1
    assert config["optimizations"]["gradient_compression"] is True
    assert config["searcher"] == {"name": "single", "metric": "loss"}
    assert "slots_per_trial" not in written["resources"]


def test_the_configuration_answers_what_is_asked_most():
    written = {
        "batches_per_step": 7,
        "resources": {"slots_per_trial": 4, "native_parallel": True},
        "reproducibility": {"experiment_seed": "3"},
        "records_per_epoch": 50,
    }
    config = context(config=written).get_experiment_config()
    assert json.loads(json.dumps(config)) == config
    assert (config.batches_per_step(), config.scheduling_unit()) == (7, 7)
    assert (config.slots_per_trial(), config.native_parallel_enabled()) == (4, True)
    assert (config.experiment_seed(), config.get_records_per_epoch()) == (3, 50)


def test_functions_tell_about_the_running_trial():
    run = TrialRun(trial_id=1, config={"data": {"a": 1}}, hparams={"rate": 0.5}, seed=5)
    with current(run):
        assert trials.get_experiment_config().get_records_per_epoch() is None
        assert trials.get_data_config() == {"a": 1}
        assert trials.get_hyperparameters() == {"rate": 0.5}
        assert trials.get_hyperparameter("rate") == 0.5
        assert trials.get_trial_seed() == 5
        with pytest.raises(ConfigurationError, match=r"Unknown hyperparameter 'units'; known are"):
            trials.get_hyperparameter("units")


def test_threads_know_the_running_trial_and_pipeline():
    def asked():
        return trials.get_hyperparameter("rate"), trials.get_pipeline().train_files

    run = TrialRun(trial_id=1, config={}, hparams={"rate": 0.5}, seed=5)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with in_pipeline(SimpleNamespace(train_files=["a"])), current(run):
            assert pool.submit(asked).result() == (0.5, ["a"])
        with pytest.raises(ConfigurationError, match="only while a trial runs"):
            pool.submit(asked).result()


def test_hyperparameters_are_values(caplog):
    found = context(rate=0.5)
    assert found.get_data_config() == {}
    assert found.get_hparams() == {"global_batch_size": 10, "rate": 0.5}
    assert found.get_hparam("rate") == 0.5
    assert found.get_hparam("global_batch_size") == 10
    assert "get_per_slot_batch_size" in caplog.text
    with pytest.raises(ValueError, match="Could not find name 'units' in experiment hyperparam"):
        found.get_hparam("units")


@pytest.mark.parametrize(
    ("slots", "of_all", "per_slot"), [(1, 10, 10), (2, 10, 5), (3, 9, 3), (4, 8, 2), (10, 10, 1)]
)
def test_batch_sizes(slots, of_all, per_slot, caplog):
    found = context(slots)
    assert found.get_global_batch_size() == of_all
    assert found.get_per_slot_batch_size() == per_slot
    assert ("changed from 10 to" in caplog.text) == (of_all != 10)


def test_with_native_parallel_batches_are_global():
    found = context(2, config={"resources": {"slots_per_trial": 2, "native_parallel": True}})
    assert (found.get_global_batch_size(), found.get_per_slot_batch_size()) == (10, 10)


@pytest.mark.parametrize(("slots", "warns"), [(0, False), (1, False), (3, True)])
def test_slots_that_are_not_there(slots, warns, caplog):
    run, _ = fit_to_workers(TrialRun(1, config={}, hparams={}, seed=0, slots=slots))
    assert run.slots == 1
    assert ("slots_per_trial" in caplog.text) == warns


@pytest.mark.parametrize(("is_global", "own"), [(True, [0, 1, 2, 3]), (False, [0, 2])])
def test_a_share_is_taken_once_and_none_of_global_batches_of_pedl(is_global, own):
    hparams = {"global_batch_size": 10}
    run = TrialRun(1, {}, hparams, 0, slots=2, workers=2, has_global_batches=is_global)
    found = TrialContext(run)
    data = found.wrap_dataset(found.wrap_dataset(tf.data.Dataset.range(4)).repeat(1))
    assert [*data.as_numpy_iterator()] == own
    assert found.get_per_slot_batch_size() == (10 if is_global else 5)


def test_stopping():
    found = context()
    assert found.get_stop_requested() is False
    assert found.set_stop_requested(True) is None
    assert found.get_stop_requested() is True
    with pytest.raises(AssertionError, match="stop_requested must be a boolean"):
        found.set_stop_requested(1)


def test_distributed_is_one_process_with_all_slots():
    found = context(2).distributed
    assert found.get_size() == 2
    assert (found.get_rank(), found.get_local_rank(), found.get_num_agents()) == (0, 0, 1)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"slots": 11}, AssertionError, "greater or equal to the number of slots"),
        ({"size": None}, AssertionError, "Please specify `global_batch_size` under `hyperpa"),
        *[({"size": one}, CheckFailedError, "an int") for one in ("32", 3.0, True)],
        ({"aggregation_frequency": 2}, CheckFailedError, "aggregation_frequency under `optimiz"),
        ({"gradient_compression": 2}, CheckFailedError, "gradient_compression under `optimiz"),
        ({"config": {"optimizations": {"mixed_precision": "O1"}}}, CheckFailedError, "must be O0"),
    ],
)
def test_what_is_refused(fields, kind, message):
    with pytest.raises(kind, match=message):
        context(**fields)


class TestFromConfig:
    def test_hyperparameters_are_drawn_with_the_seed(self):
        first, second = TrialContext.from_config(CONFIG), TrialContext.from_config(CONFIG)
        assert first.get_hparams() == second.get_hparams()
        assert 1 <= first.get_hparam("units") <= 1000
        other = TrialContext.from_config({**CONFIG, "reproducibility": {}})
        assert other.get_hparams() != first.get_hparams()
        assert (first.get_trial_seed(), other.get_trial_seed()) == (7, 0)

    def test_there_are_no_resources_and_no_numbers(self):
        found = TrialContext.from_config(CONFIG)
        assert (found.distributed.get_size(), found.get_per_slot_batch_size()) == (1, 10)
        for method in (found.get_trial_id, found.get_experiment_id):
            with pytest.raises(ValueError, match="belongs to no"):
                method()
