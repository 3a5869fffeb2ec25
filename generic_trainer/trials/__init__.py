"""Other trainer APIs, run by GenericTrainer: each trial class becomes a `run_fn`.

::

    from generic_trainer.trials import run_fn_from_trial
    from generic_trainer.trials.tensorflow import TensorFlowTrial

    class MnistTrial(TensorFlowTrial):
        ...

    run_fn = run_fn_from_trial(MnistTrial)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from generic_trainer._lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.trials import estimator, experiment, keras, native, tensorflow
    from generic_trainer.trials._hyperparameters import (
        Categorical,
        Constant,
        Double,
        Integer,
        Log,
    )
    from generic_trainer.trials._run_fn import run_fn_from_trial
    from generic_trainer.trials._trial import (
        get_experiment_config,
        get_hyperparameters,
        get_trial_seed,
    )
    from generic_trainer.trials.native import experimental

__all__ = [
    "Categorical",
    "Constant",
    "Double",
    "Integer",
    "Log",
    "estimator",
    "experiment",
    "experimental",
    "get_experiment_config",
    "get_hyperparameters",
    "get_trial_seed",
    "keras",
    "native",
    "run_fn_from_trial",
    "tensorflow",
]

_RANGES = "generic_trainer.trials._hyperparameters"
_TRIAL = "generic_trainer.trials._trial"

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Categorical": _RANGES,
        "Constant": _RANGES,
        "Double": _RANGES,
        "Integer": _RANGES,
        "Log": _RANGES,
        "experimental": f"{__name__}.native",
        "get_experiment_config": _TRIAL,
        "get_hyperparameters": _TRIAL,
        "get_trial_seed": _TRIAL,
        "run_fn_from_trial": "generic_trainer.trials._run_fn",
        **{
            api: f"{__name__}.{api}"
            for api in ("estimator", "experiment", "keras", "native", "tensorflow")
        },
    },
)
