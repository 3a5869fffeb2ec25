"""Experiments that a script starts, under the names of `determined.experimental`.

::

    from generic_trainer.trials import experimental

    if __name__ == "__main__":
        experimental.create(trial_def=MnistTrial, config=config, local=True, test=True)

    from generic_trainer.trials.experimental.keras import init     # for scripts without a class

There is no master with an API of its own, so
there are no `Determined`, `Checkpoint`, `ExperimentReference` and the like.

Source: `determined.experimental` of Determined 0.12 and 0.13.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.trials._scripts.start import (
        Mode,
        create,
        create_trial_instance,
        init_native,
        test_one_batch,
    )
    from generic_trainer.trials.experimental import estimator, keras

__all__ = [
    "Mode",
    "create",
    "create_trial_instance",
    "estimator",
    "init_native",
    "keras",
    "test_one_batch",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "generic_trainer.trials._scripts.start": "Mode create create_trial_instance init_native "
        "test_one_batch",
    },
)
