"""The public names of Determined 0.12 to 0.38: each works, or its error names the successor."""

from pathlib import Path

import pytest

from generic_trainer import trials
from generic_trainer.errors import ConfigurationError
from generic_trainer.trials import estimator, keras
from generic_trainer.trials._trial import TrialRun

# "class or module: names", of members that work; indented lines below are names that are refused,
# with a word of the successor.
TABLE = Path(__file__).with_name("determined_names.txt").read_text().splitlines()


def read_table() -> list[tuple[str, str, str | None]]:
    """Returns each owner and name, and a word of the error that the name raises, if any."""
    found = []
    owner = ""
    for line in TABLE:
        if not line or line.startswith("#"):
            continue
        word = None
        if line.startswith(" "):
            word, _, names = line.strip().partition(" <- ")
        else:
            owner, _, names = line.partition(": ")
        found += [(owner, name, word) for name in names.split()]
    return found


def made(owner: str) -> object:
    """Returns a module or an object to ask for members."""
    config = {"hyperparameters": {"global_batch_size": 4}}
    run = TrialRun(1, config=config, hparams={"global_batch_size": 4}, seed=0)
    contexts = {
        "TrialContext": trials.TrialContext,
        "NativeContext": trials.NativeContext,
        "TFKerasTrialContext": keras.TFKerasTrialContext,
        "TFKerasContext": keras.TFKerasContext,
        "EstimatorTrialContext": estimator.EstimatorTrialContext,
        "EstimatorContext": estimator.EstimatorContext,
    }
    if owner in contexts:
        return contexts[owner](run)
    if owner == "EnvContext":
        return run
    if owner == "ExperimentConfig":
        return run.experiment_config
    if owner == "DistributedContext":
        return trials.TrialContext(run).distributed
    found: object = trials
    for part in owner.split(".")[1:]:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("owner", "name", "word"), read_table())
def test_a_name_works_or_names_its_successor(owner: str, name: str, word: str | None) -> None:
    if word is None:
        getattr(made(owner), name)
        return
    with pytest.raises((AttributeError, ConfigurationError), match="not available") as caught:
        getattr(made(owner), name)
    assert name in str(caught.value)
    assert word in str(caught.value)


def test_an_import_names_the_successor() -> None:
    with pytest.raises(ConfigurationError, match=r"det\.keras\.DeterminedCallback .* run_fn"):
        from generic_trainer.trials.keras import DeterminedCallback  # noqa: F401


def test_the_core_api_names_what_takes_its_place() -> None:
    with pytest.raises(AttributeError, match=r"run_fn: training\.CheckpointManager"):
        trials.core.init()


def test_a_changed_field_of_the_trial_names_the_remedy() -> None:
    context = trials.TrialContext.from_config({"hyperparameters": {"global_batch_size": 4}})
    with pytest.raises(ConfigurationError, match=r"EnvContext\.hparams .* configuration"):
        context.env.hparams = {}


def test_a_context_knows_where_the_trial_begins_and_writes(tmp_path: Path) -> None:
    config = {"hyperparameters": {"global_batch_size": 4}}
    run = TrialRun(1, config=config, hparams={"global_batch_size": 4}, seed=0, batches_trained=7)
    assert trials.TrialContext(run).get_initial_batch() == 7
    assert trials.TrialContext(run).get_tensorboard_path().name.startswith("tensorboard-")
    run = TrialRun(1, config=config, hparams=run.hparams, seed=0, log_dir=str(tmp_path))
    assert trials.TrialContext(run).get_tensorboard_path() == tmp_path
    run = TrialRun(1, config=config, hparams=run.hparams, seed=0, log_dir="gs://bucket/run")
    with pytest.raises(ConfigurationError, match="gs://bucket/run is remote"):
        trials.TrialContext(run).get_tensorboard_path()


def test_processes_exchange_values() -> None:
    place = trials.TrialContext.from_config(
        {"hyperparameters": {"global_batch_size": 4}}
    ).distributed
    assert (place.rank, place.size, place.local_rank, place.local_size) == (0, 1, 0, 1)
    assert (place.cross_rank, place.cross_size) == (0, 1)
    assert place.allgather("a") == place.gather("a") == place.allgather_local("a") == ["a"]
    assert place.gather_local("a") == ["a"]
    assert place.broadcast("a") == place.broadcast_local("a") == "a"
