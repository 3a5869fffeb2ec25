"""Experiments that a script starts, under the names of `determined.experimental`.

::

    from generic_trainer.trials import experimental

    if __name__ == "__main__":
        experimental.create(trial_def=MnistTrial, config=config, local=True, test=True)

    from generic_trainer.trials.experimental.keras import init     # for scripts without a class

No master with an API exists here, so `Determined`, `Checkpoint`, `ExperimentReference` and the
like raise an error.

Source: `determined.experimental` of Determined 0.12 and 0.13.
"""

from generic_trainer._core.lazy import lazy_names
from generic_trainer.trials._gone import naming_successors

__all__ = ["Mode", "create", "create_trial_instance", "estimator", "keras", "test_one_batch"]

_load, __dir__ = lazy_names(
    __name__,
    {"generic_trainer.trials._scripts.start": "Mode create create_trial_instance test_one_batch"},
)
__getattr__ = naming_successors(__name__, _load)
