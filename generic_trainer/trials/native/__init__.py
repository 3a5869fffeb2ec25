"""Experiments that a script starts: `keras.init` and `estimator.init`.

::

    from generic_trainer.trials.native import estimator

    context = estimator.init(config, local=True, test=True)      # one batch, here
    context = estimator.init(config, context_dir=".", master_url="http://head:8265")  # on Ray

On a cluster the folder is sent as a Ray job (with GenericTrainer's extra `ray`), and the script
ends at `init`. In the job it is run anew for each trial, up to the line that trains.

`experimental.create` starts an experiment of a trial class in the same way.

Source: `determined.keras.init`, `determined.estimator.init` and `determined.experimental` of
Determined 0.12 and 0.13.
"""

from generic_trainer._core.lazy import lazy_names

# Module → the public names that it defines.
_HOMES = {
    "generic_trainer.trials": "experimental",
    "generic_trainer.trials._scripts.loading": "StopLoadingImplementation",
    "generic_trainer.trials._scripts.start": "Mode",
    "generic_trainer.trials.errors": "InvalidExperimentException",
}

__all__ = ["estimator", "keras", *_HOMES.values()]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
