"""The names that trial files import, and that they cost nothing before they are used."""

import inspect

import pytest

from tests.house import run_python

# Names and their arguments, in the order of the originals; what comes after them is ours.
SIGNATURES = [
    "Constant(value)",
    "Integer(minval, maxval)",
    "Double(minval, maxval)",
    "Log(minval, maxval, base)",
    "Categorical(vals)",
    "create(trial_def, config, local, test, context_dir, command, master_url)",
    "create_trial_instance(trial_def, checkpoint_dir, config, hparams)",
    "keras.init(config, local, test, context_dir, command, master_url)",
    "estimator.init(config, local, test, context_dir, command, master_url)",
    "keras.SequenceAdapter(data, use_multiprocessing, workers, max_queue_size)",
    "keras.SequenceAdapter.start(self, batch_offset, is_validation)",
    "keras.InMemorySequence(data, labels, batch_size, sample_weight, drop_leftovers)",
    "keras.ArrayLikeAdapter(x, y, batch_size, sample_weights, drop_leftovers)",
    "keras.TFKerasTrialContext.wrap_dataset(self, dataset, shard_dataset)",
    "keras.TFKerasTrialContext.configure_fit(self, verbose, class_weight, workers, "
    "use_multiprocessing, max_queue_size, validation_steps)",
    "estimator.EstimatorTrialContext.wrap_dataset(self, dataset, shard_dataset)",
    "estimator.EstimatorExperimentalContext.make_metric(self, metric, reducer, numpy_dtype)",
    "keras.TFKerasExperimentalContext.cache_train_dataset(self, dataset_id, dataset_version, "
    "shuffle, skip_shuffle_at_epoch_end)",
    "keras.TFKerasExperimentalContext.cache_validation_dataset(self, dataset_id, dataset_version, "
    "shuffle)",
    "estimator.EstimatorNativeContext.train_and_evaluate(self, estimator, train_spec, eval_spec)",
]


@pytest.mark.parametrize("signature", SIGNATURES)
def test_arguments_are_those_of_the_originals(signature):
    name, _, expected = signature.removesuffix(")").partition("(")
    found = __import__("generic_trainer.trials", fromlist=["*"])
    for part in name.split("."):
        found = getattr(found, part)
    parameters = list(inspect.signature(found).parameters)
    assert parameters[: len(expected.split(", "))] == expected.split(", ")


def test_importing_what_all_apis_share_does_not_import_tensorflow():
    rooms = ["", ".trials", ".trials.errors", ".trials.experimental", ".trials.native"]
    packages = ", ".join(f"generic_trainer{room}" for room in rooms)
    run_python("-c", f"import sys, {packages}; sys.exit('tensorflow' in sys.modules)")


def test_the_core_api_is_a_name_for_annotations_alone() -> None:
    from generic_trainer import trials

    assert trials.core.Context is not None
    with pytest.raises(
        AttributeError, match=r"det\.core\.init: .* trial classes of 0\.12 and 0\.13"
    ):
        trials.core.init()
