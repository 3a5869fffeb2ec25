"""Public names of Determined 0.12 to 0.38 that are missing here, and what takes their place.

The same table answers for modules and for objects, so that no program ends in a bare
`AttributeError`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from generic_trainer.errors import ConfigurationError

_MASTER = "nothing: no master exists here, and results are artifacts of the pipeline"
_FIT = (
    "run_fn with model.fit(callbacks=[*training.resume_callbacks(fn_args), ...]) of "
    "generic_trainer, which restores, reports and publishes"
)
_OMIT = "nothing: omit it, the harness keeps it"
_LOOP = "nothing: omit it, or annotate with generic_trainer.trials.TrialController"
_LOAD = "tf.saved_model.load(directory) of the published model"
# Module or class → names, with spaces between them → what takes their place.
_GONE: Mapping[str, Mapping[str, str]] = {
    "det": {
        "CallbackTrialController LoopTrialController": _LOOP,
        "ClusterInfo ResourcesInfo TrialInfo get_cluster_info": (
            "the context of the trial, or get_pipeline() of generic_trainer.trials"
        ),
        "RankInfo RendezvousInfo": "context.distributed",
        "LegacyTrial": "keras.TFKerasTrial or estimator.EstimatorTrial",
        "import_from_path util": "importlib, or your own function: they are Determined's helpers",
    },
    "det.keras": {
        "DeterminedCallback": _FIT,
        "TFKerasTrialController": _LOOP,
        "TensorBoard": "tf.keras.callbacks.TensorBoard(fn_args.model_run_dir), in a run_fn",
        "load_model_from_checkpoint_path": _LOAD,
        "get_rng_state set_rng_state": "nothing: checkpoints have the state of random generators",
    },
    "det.estimator": {
        "EstimatorTrialController": _LOOP,
        "load_estimator_from_checkpoint_path": _LOAD,
    },
    "det.experimental": {
        "Checkpoint Determined ExperimentReference Model ModelOrderBy ModelSortBy TrialOrderBy "
        "TrialReference TrialSortBy client": _MASTER,
        "init_native": "keras.init or estimator.init of generic_trainer.trials",
    },
    "det.errors": {
        "CheckpointNotFound CheckpointStateException EnterpriseOnlyError InternalException "
        "InvalidCheckpointException MultipleDownloadsFailed NoDirectStorageAccess "
        "ProxiedDownloadFailed SkipWorkloadException StopLoadingImplementation WorkerError "
        "WorkerFinishedGracefully": "generic_trainer.errors, whose classes are raised here",
        "InvalidConfigurationException InvalidModelException": (
            "generic_trainer.errors.ConfigurationError"
        ),
    },
    "TrialContext": {
        "aggregation_frequency average_aggregated_gradients fp16_compression": (
            'context.get_experiment_config()["optimizations"]'
        ),
        "compile_args": "context.model, which is compiled before training",
        "dataset_initialized input_from_dataflow optimizer_initialized": _OMIT,
        "rendezvous_info": "context.distributed",
    },
    "DistributedContext": {
        "close": _OMIT,
        "from_deepspeed from_horovod from_torch_distributed": (
            "context.distributed, whose processes the launcher has connected"
        ),
    },
    "EnvContext": {
        "allocation_id container_id det_agent_id det_allocation_token det_cluster_id "
        "det_experiment_id det_rendezvous_port det_rendezvous_ports det_task_token "
        "det_trial_runner_network_interface det_trial_unique_port_offset master_addr "
        "master_cert_file master_cert_name master_port master_url on_cluster rendezvous_port "
        "rendezvous_ports trial_run_id use_tls workload_manager_type": _MASTER,
        "container_gpus slot_ids use_gpu": 'tf.config.list_physical_devices("GPU")',
        "debug test_mode training": "context.get_experiment_config()",
        "first_step initial_workload latest_batch steps_completed": "context.get_initial_batch()",
        "global_batch_size": "context.get_global_batch_size()",
        "latest_checkpoint": "RunHook.on_checkpoint_load, or Callback.load_state",
        "per_slot_batch_size": "context.get_per_slot_batch_size()",
    },
    "ExperimentConfig": {
        "average_training_metrics_enabled averaging_training_metrics_enabled "
        "get_optimizations_config horovod_optional_args mixed_precision_enabled": (
            'config["optimizations"]'
        ),
        "debug_enabled": 'config.get("debug")',
        "get_checkpoint_storage": 'config.get("checkpoint_storage")',
        "get_data_layer_type": 'config.get("data_layer")',
        "get_entrypoint": 'config.get("entrypoint")',
        "get_min_checkpoint_period": 'config.get("min_checkpoint_period")',
        "get_min_validation_period validation_freq": 'config.get("min_validation_period")',
        "get_searcher_metric": 'config["searcher"].get("metric")',
        "input_from_dataflow native_enabled": _OMIT,
        "profile_frequency profiling_enabled profiling_interval profiling_sync_timings": (
            "tf.keras.callbacks.TensorBoard(profile_batch=...)"
        ),
    },
}


def successor_of(owner: str, name: str) -> str | None:
    """Returns what takes the place of a member of a module or class; None for other names."""
    names = _GONE.get(owner, {}).items()
    return next((successor for gone, successor in names if name in gone.split()), None)


def naming_successors(
    module: str, load: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module of the trial APIs.

    Args:
        module: the `__name__` of `generic_trainer.trials` or of a module in it.
        load: the `__getattr__` that answers for all other names.
    """
    owner = module.replace("generic_trainer.trials", "det")

    def find(name: str) -> Any:
        if successor := successor_of(owner, name):
            # An AttributeError would lose its message in `from module import name`.
            raise ConfigurationError(f"{owner}.{name} is not available here; use {successor}")
        if load is not None:
            return load(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


class NamesSuccessors:
    """A class of which users may miss members; a subclass is known by the name of its base."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            for owner in [base.__name__ for base in type(self).__mro__]:
                owner = {"TrialRun": "EnvContext"}.get(owner, owner)
                if successor := successor_of(owner, name):
                    raise AttributeError(
                        f"{owner}.{name} is not available here; use {successor}", name=name
                    )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
