"""Trials and configurations as users of Determined wrote them."""

import textwrap

import pytest
import tensorflow as tf

from generic_trainer._core.event_files import last_scalars
from generic_trainer.errors import ModuleFileError
from generic_trainer.trials.experimental import create_trial_instance
from generic_trainer.trials.experimental import test_one_batch as try_one_batch
from tests.trials.keras.written_for_determined import pedl_two_tasks, sums
from tests.trials.keras.written_for_determined.augmented import AugmentedTrial
from tests.trials.keras.written_for_determined.blots import BlotsTrial


@pytest.fixture
def run_yaml(run_experiment, tmp_path):
    def run(trial_class, text):
        path = tmp_path / "const.yaml"
        path.write_text(textwrap.dedent(text))
        return run_experiment(trial_class, {"experiment_config": str(path)})

    return run


def test_augmented(run_yaml):
    [trial] = run_yaml(
        AugmentedTrial,
        """
        data: {processes: true}
        hyperparameters:
          learning_rate: {type: const, val: 3e-3}
          dropout: {type: double, minval: 0.1, maxval: 0.2}
          global_batch_size: 32
        batches_per_step: 47
        searcher:
          name: single
          metric: val_categorical_error
          max_steps: 4
        min_validation_period: 2
        """,
    )
    assert trial["batches"] == 4 * 47
    assert trial["best"] < 0.5
    last = trial["history"][-1]["validation"]
    assert last["workloads"] == 4
    assert last["lr"] == pytest.approx(3e-3)


def test_blots(run_yaml, tmp_path):
    [trial] = run_yaml(
        BlotsTrial,
        """
        hyperparameters: {global_batch_size: 30, noise: 5, learning_rate: 1e-3}
        searcher: {name: single, metric: val_forged, max_length: {batches: 20}}
        scheduling_unit: 10
        min_validation_period: {batches: 10}
        """,
    )
    assert trial["history"][-1]["validation"].keys() == {"val_forged", "val_judged"}
    served = tf.saved_model.load(str(tmp_path / "Format-Serving")).signatures["serving_default"]
    [name] = served.structured_input_signature[1]
    [blots] = served(**{name: tf.zeros([3, 5])}).values()
    assert blots.shape == (3, 64)  # of the generator, from noise


def test_sums(run_yaml, eager_again, tmp_path):
    tf.compat.v1.disable_eager_execution()  # as modules do, beside the class
    [trial] = run_yaml(
        sums.SumsTrial,
        """
        hyperparameters: {global_batch_size: 2, learning_rate: 0.5}
        searcher: {name: single, metric: val_loss, max_length: {batches: 40}}
        scheduling_unit: 20
        """,
    )
    assert trial["best"] < 1e-3
    assert len(sums.seen) == 40
    # Whether the module runs eagerly, and how often Keras writes, does not matter to them.
    found = last_scalars(str(tmp_path / "run" / "trials" / "1"))
    assert found["validation/val_loss"] == pytest.approx(trial["best"], rel=1e-3)
    assert "training/loss" in found


def test_metrics_have_the_names_of_the_dicts(run_yaml):
    [trial] = run_yaml(
        pedl_two_tasks.OneTaskTrial,
        """
        hyperparameters: {batch_size: 32, tasks: 1}
        searcher: {name: single, metric: validation_error, max_steps: 2}
        batches_per_step: 46
        """,
    )
    first, *_, last = trial["history"]
    assert {"loss", "accuracy"} <= first["training"].keys()
    assert trial["best"] == last["validation"]["validation_error"] < 0.5


def test_metrics_of_two_tasks(run_yaml):
    [trial] = run_yaml(
        pedl_two_tasks.TwoTasksTrial,
        """
        hyperparameters: {batch_size: 32, tasks: 2}
        searcher:
          {name: single, metric: digit_accuracy, smaller_is_better: false, max_steps: 2}
        batches_per_step: 46
        """,
    )
    first, *_, last = trial["history"]
    assert {"digit_accuracy", "high_accuracy"} <= first["training"].keys()
    assert trial["best"] == last["validation"]["digit_accuracy"] > 0.5
    assert last["validation"]["high_accuracy"] == last["validation"]["val_is_high_high_accuracy"]


def test_metrics_of_the_only_output(run_yaml):
    """Keras 3 does not put the name of the output before theirs."""
    [trial] = run_yaml(
        pedl_two_tasks.OneOutputTrial,
        """
        hyperparameters: {batch_size: 32, tasks: 1}
        searcher: {name: single, metric: accuracy, smaller_is_better: false, max_steps: 1}
        batches_per_step: 46
        """,
    )
    assert trial["best"] == trial["history"][-1]["validation"]["accuracy"] > 0.5


def test_two_metrics_of_one_name(run_yaml):
    with pytest.raises(ModuleFileError, match="name two metrics 'accuracy'"):
        run_yaml(
            pedl_two_tasks.TwoMetricsOfOneNameTrial,
            """
            hyperparameters: {batch_size: 32, tasks: 1}
            searcher: {name: single, metric: accuracy, max_steps: 1}
            batches_per_step: 2
            """,
        )


def test_a_trial_that_is_made_by_hand_has_its_own_context(tmp_path, eager_again):
    config = {"hyperparameters": {"global_batch_size": 2, "learning_rate": 0.5}}
    trial = create_trial_instance(sums.SumsTrial, str(tmp_path), config)
    assert isinstance(trial.trial_context, sums.CountingContext)
    assert sums.CountingContext.from_config(config).rate == 0.5
    trial.trial_context.configure_fit(verbose=False, workers=2)
    assert trial.trial_context.fit_options.workers == 2


def test_one_batch(eager_again):
    config = {"hyperparameters": {"global_batch_size": 2, "learning_rate": 0.5}}
    try_one_batch(sums.SumsTrial, config)
    assert len(sums.seen) == 1
