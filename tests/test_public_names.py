"""Every public name, pinned: what is added or taken away is seen here."""

from __future__ import annotations

import importlib

import pytest

from tests.house import modules

# Public module → its `__all__`.
PUBLIC = {
    "generic_trainer": [
        "Distribution",
        "GenericTrainer",
        "ServingContract",
        "__version__",
        "cli",
        "components",
        "data",
        "errors",
        "estimator",
        "executors",
        "launchers",
        "training",
        "trials",
        "user_code",
        "validation",
        "vertex",
    ],
    "generic_trainer.cli": ["main"],
    "generic_trainer.components": ["GenericTrainer", "GenericTrainerSpec"],
    "generic_trainer.data": [
        "SplitCounts",
        "count_examples",
        "explain_read_errors",
        "make_dataset_factory",
    ],
    "generic_trainer.errors": [
        "ConfigurationError",
        "DataError",
        "ExportError",
        "GenericTrainerError",
        "ModelValidationError",
        "ModuleFileError",
        "TrainingError",
        "WorkerDiskError",
        "WorkerHangError",
        "WorkerLostError",
        "WorkerMemoryError",
        "raise_problems",
    ],
    "generic_trainer.estimator": ["experimental", "export", "inputs", "tf", "tf1", "v1"],
    "generic_trainer.estimator.v1": ["experimental", "export", "inputs"],
    "generic_trainer.executors": [
        "FN_ARGS_FACTORY",
        "GenericTrainerExecutor",
    ],
    "generic_trainer.launchers": [
        "Distribution",
        "ExamplesFormat",
        "Failure",
        "Job",
        "Launcher",
        "RayOptions",
        "TFJobOptions",
        "TrainJobOptions",
        "TrainingRequest",
        "VertexOptions",
        "exit_code",
        "launch",
    ],
    "generic_trainer.training": [
        "CheckpointManager",
        "SavedCheckpoint",
        "distributed",
        "export_model",
        "get_strategy",
        "is_chief",
        "restore_weights",
        "resume_callbacks",
        "steps_for",
    ],
    "generic_trainer.training.distributed": [
        "agree_to_stop",
        "all_reduce",
        "average_gradients",
        "barrier",
        "broadcast",
        "gather",
        "rank",
        "size",
    ],
    "generic_trainer.training.export": [
        "export_model",
        "export_on_tensors",
        "inference_arguments",
    ],
    "generic_trainer.training.resume": [
        "CheckpointManager",
        "SavedCheckpoint",
        "restore_weights",
        "resume_callbacks",
    ],
    "generic_trainer.trials": [
        "Categorical",
        "Constant",
        "DistributedContext",
        "Double",
        "EnvContext",
        "ExperimentConfig",
        "Integer",
        "Log",
        "Mode",
        "NativeContext",
        "Pipeline",
        "Trial",
        "TrialContext",
        "TrialController",
        "create",
        "create_trial_instance",
        "errors",
        "estimator",
        "experiment",
        "experimental",
        "get_data_config",
        "get_download_data_dir",
        "get_experiment_config",
        "get_hyperparameter",
        "get_hyperparameters",
        "get_pipeline",
        "get_trial_seed",
        "horovod",
        "keras",
        "native",
        "run_fn_from_trial",
        "tensorflow",
        "util",
    ],
    "generic_trainer.trials.errors": [
        "CheckFailedError",
        "InvalidArgumentsError",
        "InvalidDataTypeException",
        "InvalidExperimentException",
    ],
    "generic_trainer.trials.estimator": [
        "EstimatorContext",
        "EstimatorExperimentalContext",
        "EstimatorNativeContext",
        "EstimatorTrial",
        "EstimatorTrialContext",
        "MetricReducer",
        "RunHook",
        "ServingInputReceiverFn",
        "init",
    ],
    "generic_trainer.trials.experiment": [
        "Experiment",
        "ExportStrategy",
        "HParams",
        "MetricSpec",
        "ModeKeys",
        "RunConfig",
        "contrib",
        "learn_runner",
        "make_export_strategy",
        "run_fn_from_experiment",
    ],
    "generic_trainer.trials.experiment.contrib": [
        "ExportStrategy",
        "ModeKeys",
        "RunConfig",
        "make_export_strategy",
    ],
    "generic_trainer.trials.experiment.learn_runner": ["run", "tune"],
    "generic_trainer.trials.experimental": [
        "Mode",
        "create",
        "create_trial_instance",
        "estimator",
        "init_native",
        "keras",
        "test_one_batch",
    ],
    "generic_trainer.trials.experimental.estimator": ["init"],
    "generic_trainer.trials.experimental.keras": ["init"],
    "generic_trainer.trials.keras": [
        "ArrayLike",
        "ArrayLikeAdapter",
        "InMemorySequence",
        "InputData",
        "KerasDataAdapter",
        "KerasInputData",
        "KerasTrial",
        "SequenceAdapter",
        "TFKerasContext",
        "TFKerasExperimentalContext",
        "TFKerasNativeContext",
        "TFKerasTensorBoard",
        "TFKerasTrainConfig",
        "TFKerasTrial",
        "TFKerasTrialContext",
        "callbacks",
        "data",
        "init",
    ],
    "generic_trainer.trials.keras.callbacks": [
        "Callback",
        "EarlyStopping",
        "ReduceLROnPlateau",
        "TFKerasTensorBoard",
        "TensorBoard",
    ],
    "generic_trainer.trials.keras.data": [
        "ArrayLikeAdapter",
        "InMemorySequence",
        "KerasDataAdapter",
    ],
    "generic_trainer.trials.native": [
        "InvalidExperimentException",
        "Mode",
        "StopLoadingImplementation",
        "estimator",
        "experimental",
        "keras",
    ],
    "generic_trainer.trials.native.estimator": ["EstimatorNativeContext", "init"],
    "generic_trainer.trials.native.keras": ["TFKerasNativeContext", "init"],
    "generic_trainer.trials.horovod": ["HorovodContext", "hvd"],
    "generic_trainer.trials.tensorflow": [
        "EstimatorTrial",
        "TensorFlowTrial",
        "wrap_dataset",
        "wrap_optimizer",
    ],
    "generic_trainer.trials.util": [
        "get_member_func",
        "has_param",
        "is_overridden",
        "json_encode",
        "make_metrics",
        "validate_batch_metrics",
    ],
    "generic_trainer.user_code": [
        "UserCode",
        "bundle_function",
        "bundle_module_file",
        "call_user_function",
        "checked_function",
        "defines_function",
        "explain_missing",
        "imported_files",
        "imported_packages",
        "is_importing",
        "loaded_modules",
        "path_of_module",
        "user_function",
        "user_module",
    ],
    "generic_trainer.validation": [
        "Checker",
        "Result",
        "ServingContract",
        "SignatureSpec",
        "ValidationReport",
        "all_checks",
        "lint_eval_config",
        "print_report",
        "read_records",
        "start_checker",
        "validate_saved_model",
        "write_manifest",
    ],
    "generic_trainer.vertex": [
        "ENABLE_UCAIP_KEY",
        "ENABLE_VERTEX_KEY",
        "JOB_ID_KEY",
        "LABELS_KEY",
        "TRAINING_ARGS_KEY",
        "Trainer",
        "UCAIP_REGION_KEY",
        "VERTEX_CONTAINER_IMAGE_URI_KEY",
        "VERTEX_REGION_KEY",
        "distribution_of",
    ],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_the_pinned_ones(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == PUBLIC[module]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there(module: str) -> None:
    loaded = importlib.import_module(module)
    missing = [name for name in PUBLIC[module] if not hasattr(loaded, name)]
    assert missing == []
    assert set(PUBLIC[module]) <= set(dir(loaded))


def test_every_other_module_is_private() -> None:
    public = [
        name for name in modules() if not any(part.startswith("_") for part in name.split("."))
    ]
    assert sorted(set(public) - PUBLIC.keys() - WITHOUT_ALL) == []


# Modules whose names are those of another one, and programs.
WITHOUT_ALL = {
    "generic_trainer.estimator.experimental",
    "generic_trainer.estimator.export",
    "generic_trainer.estimator.inputs",
}
