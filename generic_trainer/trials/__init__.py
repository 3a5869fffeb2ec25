"""Trial APIs of other trainers, run by GenericTrainer: each trial class becomes a `run_fn`.

::

    from generic_trainer.trials import run_fn_from_trial
    from generic_trainer.trials.tensorflow import TensorFlowTrial

    class MnistTrial(TensorFlowTrial):
        ...

    run_fn = run_fn_from_trial(MnistTrial)

This package also takes the place of `determined`, as in ``import generic_trainer.trials as det``,
and of `pedl`.
"""

from generic_trainer._core.lazy import lazy_names
from generic_trainer.trials._gone import naming_successors

# Module → the public names that it defines.
_HOMES = {
    "_config": "ExperimentConfig",
    "_context": "DistributedContext NativeContext TrialContext",
    "_hyperparameters": "Categorical Constant Double Integer Log",
    "_loop": "TrialController",
    "_pipeline": "Pipeline get_pipeline",
    "_run_fn": "run_fn_from_trial",
    "_scripts.start": "Mode create create_trial_instance",
    "errors": "InvalidHP",
    "_trial": "EnvContext Trial core get_data_config get_download_data_dir get_experiment_config "
    "get_hyperparameter get_hyperparameters get_trial_seed",
}
_MODULES = "errors estimator experiment experimental horovod keras native tensorflow"

__all__ = [*" ".join([_MODULES, *_HOMES.values()]).split()]

_load, __dir__ = lazy_names(__name__, _HOMES)
__getattr__ = naming_successors(__name__, _load)
