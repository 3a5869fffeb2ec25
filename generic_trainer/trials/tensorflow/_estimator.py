"""`EstimatorTrial` as PEDL had it: methods take hyperparameters, and functions wrap."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials import estimator
from generic_trainer.trials._trial import HparamsTrial

_context: contextvars.ContextVar[estimator.EstimatorTrialContext] = contextvars.ContextVar(
    "estimator_trial_context"
)


class HparamsEstimatorTrial(HparamsTrial, estimator.EstimatorTrial):
    """A `tf.estimator.Estimator` with its data.

    ::

        from generic_trainer.trials.tensorflow import EstimatorTrial, wrap_dataset, wrap_optimizer

        class IrisTrial(EstimatorTrial):
            def build_estimator(self, hparams):
                optimizer = wrap_optimizer(tf.train.AdamOptimizer(hparams["learning_rate"]))
                return tf.estimator.DNNClassifier([10], COLUMNS, optimizer=optimizer)

            def build_train_spec(self, hparams):
                return tf.estimator.TrainSpec(lambda: wrap_dataset(read(hparams["batch_size"])))
            ...

    Source: the documentation of PEDL's EstimatorTrial.
    """

    def build_serving_input_receiver_fns(  # type: ignore[override]
        self, hparams: dict[str, Any]
    ) -> dict[str, Callable[..., Any]]:
        """Returns name → serving input receiver function."""
        return {}

    @classmethod
    def of_context(cls, context: estimator.EstimatorTrialContext) -> tuple[Any, tuple[Any, ...]]:
        """Returns the trial, and what its methods take."""
        _context.set(context)
        return cls(context.get_hparams()), (context.get_hparams(),)


EstimatorTrial = HparamsEstimatorTrial  # its name in PEDL


def wrap_dataset(dataset: Any) -> Any:
    """Returns what this process reads of the data of the running `EstimatorTrial`."""
    return _running().wrap_dataset(dataset)


def wrap_optimizer(optimizer: Any) -> Any:
    """Returns the optimizer; must be called once at least."""
    return _running().wrap_optimizer(optimizer)


def _running() -> estimator.EstimatorTrialContext:
    try:
        return _context.get()
    except LookupError:
        raise ConfigurationError(
            "wrap_dataset and wrap_optimizer are for the methods of an EstimatorTrial of PEDL, and "
            "what these call."
        ) from None
