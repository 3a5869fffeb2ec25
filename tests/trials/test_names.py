"""The names that trial files import, and that they cost nothing before they are used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest

from generic_trainer.trials import errors, util

# What code written for Determined 0.12 and 0.13, PEDL or tf.contrib.learn may import, and more.
NAMES = {
    "generic_trainer": {"estimator"},
    "generic_trainer.trials": {
        *("Categorical", "Constant", "Double", "Integer", "Log"),
        *("DistributedContext", "ExperimentConfig", "Mode", "Trial", "TrialContext"),
        *("create", "create_trial_instance", "run_fn_from_trial"),
        *("get_data_config", "get_experiment_config", "get_hyperparameter"),
        *("get_hyperparameters", "get_trial_seed", "EnvContext", "NativeContext"),
        *("Pipeline", "TrialController", "get_pipeline", "horovod", "util"),
        *("errors", "estimator", "experiment", "experimental", "keras", "native", "tensorflow"),
    },
    "generic_trainer.trials.errors": {
        *("CheckFailedError", "InvalidArgumentsError"),
        *("InvalidDataTypeException", "InvalidExperimentException"),
    },
    "generic_trainer.trials.estimator": {
        *("EstimatorContext", "EstimatorExperimentalContext", "EstimatorNativeContext"),
        *("EstimatorTrial", "EstimatorTrialContext", "MetricReducer", "RunHook"),
        *("ServingInputReceiverFn", "init"),
    },
    "generic_trainer.trials.experiment": {
        *("Experiment", "HParams", "RunConfig", "learn_runner", "run_fn_from_experiment"),
    },
    "generic_trainer.trials.experimental": {
        *("Mode", "create", "create_trial_instance", "estimator", "init_native", "keras"),
        "test_one_batch",
    },
    "generic_trainer.trials.experimental.estimator": {"init"},
    "generic_trainer.trials.experimental.keras": {"init"},
    "generic_trainer.trials.keras": {
        *("ArrayLike", "ArrayLikeAdapter", "InMemorySequence", "InputData", "KerasDataAdapter"),
        *("KerasInputData", "SequenceAdapter", "TFKerasContext", "TFKerasExperimentalContext"),
        *("TFKerasNativeContext", "TFKerasTensorBoard", "TFKerasTrial", "TFKerasTrialContext"),
        *("TFKerasTrainConfig", "_ArrayLikeAdapter", "callbacks", "init"),
    },
    "generic_trainer.trials.horovod": {"HorovodContext", "hvd"},
    "generic_trainer.trials.keras.callbacks": {
        *("Callback", "EarlyStopping", "ReduceLROnPlateau", "TFKerasTensorBoard", "TensorBoard"),
    },
    "generic_trainer.trials.native": {
        *("InvalidExperimentException", "Mode", "StopLoadingImplementation"),
        *("estimator", "experimental", "keras"),
    },
    "generic_trainer.trials.native.estimator": {"EstimatorNativeContext", "init"},
    "generic_trainer.trials.native.keras": {"TFKerasNativeContext", "init"},
    "generic_trainer.trials.tensorflow": {"TensorFlowTrial"},
}

# Names and their arguments, in the order of the originals; what comes after them is ours.
SIGNATURES = {
    "Constant": ["value"],
    "Integer": ["minval", "maxval"],
    "Double": ["minval", "maxval"],
    "Log": ["minval", "maxval", "base"],
    "Categorical": ["vals"],
    "create": [
        *("trial_def", "config", "local", "test", "context_dir", "command", "master_url"),
    ],
    "create_trial_instance": ["trial_def", "checkpoint_dir", "config", "hparams"],
    "keras.init": ["config", "local", "test", "context_dir", "command", "master_url"],
    "estimator.init": ["config", "local", "test", "context_dir", "command", "master_url"],
    "keras.SequenceAdapter": ["data", "use_multiprocessing", "workers", "max_queue_size"],
    "keras.SequenceAdapter.start": ["self", "batch_offset", "is_validation"],
    "keras.InMemorySequence": [
        *("data", "labels", "batch_size", "sample_weight", "drop_leftovers"),
    ],
    "keras.ArrayLikeAdapter": ["x", "y", "batch_size", "sample_weights", "drop_leftovers"],
    "keras.TFKerasTrialContext.wrap_dataset": ["self", "dataset", "shard_dataset"],
    "keras.TFKerasTrialContext.configure_fit": [
        *("self", "verbose", "class_weight", "workers", "use_multiprocessing"),
        *("max_queue_size", "shuffle", "validation_steps"),
    ],
    "estimator.EstimatorTrialContext.wrap_dataset": ["self", "dataset", "shard_dataset"],
    "estimator.EstimatorExperimentalContext.make_metric": [
        *("self", "metric", "reducer", "numpy_dtype"),
    ],
    "keras.TFKerasExperimentalContext.cache_train_dataset": [
        *("self", "dataset_id", "dataset_version", "shuffle", "skip_shuffle_at_epoch_end"),
    ],
    "keras.TFKerasExperimentalContext.cache_validation_dataset": [
        *("self", "dataset_id", "dataset_version", "shuffle"),
    ],
    "estimator.EstimatorNativeContext.train_and_evaluate": [
        *("self", "estimator", "train_spec", "eval_spec"),
    ],
}


def test_functions_of_util():
    batches = [{"loss": 1.0, "name": "a"}, {"loss": 3.0, "name": "b"}]
    assert util.make_metrics(7, batches) == {
        "batch_metrics": batches,
        "avg_metrics": {"loss": 2.0, "name": None},
        "num_inputs": 7,
    }
    with pytest.raises(errors.CheckFailedError, match="inconsistent training metrics: index: 1"):
        util.validate_batch_metrics([{"loss": 1.0}, {"mae": 1.0}])
    values = {"b": np.array([1.0, np.nan]), "a": (np.int64(3), b"x", float("-inf"))}
    assert (
        util.json_encode(values, sort_keys=True)
        == '{"a": [3, "x", "-Infinity"], "b": [1.0, "NaN"]}'
    )
    assert util.is_overridden(Child().method, Parent)
    assert not util.is_overridden(Child().other, Parent)
    assert util.get_member_func(Child(), "method")
    assert util.get_member_func(Child(), "absent") is None
    assert util.has_param(Parent.method, "x")
    assert util.has_param(Parent.method, "y", pos=1)
    assert not util.has_param(Parent.method, "y")


class Parent:
    def method(self, x):
        return x

    def other(self):
        return None


class Child(Parent):
    def method(self, x):
        return 2 * x


@pytest.mark.parametrize("module", NAMES)
def test_names_are_there(module):
    imported = __import__(module, fromlist=["*"])
    assert NAMES[module] <= set(dir(imported))
    for name in NAMES[module]:
        assert getattr(imported, name) is not None


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_those_of_the_originals(name):
    found = __import__("generic_trainer.trials", fromlist=["*"])
    for part in name.split("."):
        found = getattr(found, part)
    parameters = list(inspect.signature(found).parameters)
    assert parameters[: len(SIGNATURES[name])] == SIGNATURES[name]


def test_importing_what_all_apis_share_does_not_import_tensorflow():
    rooms = ["", ".trials", ".trials.errors", ".trials.experimental", ".trials.native"]
    packages = ", ".join(f"generic_trainer{room}" for room in rooms)
    program = f"import sys, {packages}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
