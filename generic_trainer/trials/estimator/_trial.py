"""`EstimatorTrial`, the base class of users' trials that are estimators."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from generic_trainer.trials._env import EnvContext, HorovodContext
from generic_trainer.trials._process import code_file, fit_to_devices, seed_generators
from generic_trainer.trials._trial import Trial, TrialRun
from generic_trainer.trials.estimator._context import EstimatorTrialContext
from generic_trainer.trials.estimator._controller import EstimatorController

ServingInputReceiverFn = Callable[..., Any]


class EstimatorTrial(Trial, abc.ABC):
    """A `tf.estimator.Estimator` with its data.

    ::

        from generic_trainer.estimator import tf
        from generic_trainer.trials.estimator import EstimatorTrial, EstimatorTrialContext

        class IrisTrial(EstimatorTrial):
            def __init__(self, context: EstimatorTrialContext) -> None:
                self.context = context

            def build_estimator(self):
                rate = self.context.get_hparam("learning_rate")
                optimizer = self.context.wrap_optimizer(tf.keras.optimizers.Adam(rate))
                return tf.estimator.DNNClassifier([10], COLUMNS, optimizer=optimizer)
            ...

    Each method is called once per trial, in the order in which they stand here.

    Source: `determined.estimator.EstimatorTrial` of Determined 0.13.
    """

    trial_context_class = EstimatorTrialContext

    def __init__(self, context: EstimatorTrialContext) -> None:
        """Takes the trial's context; a subclass need not call this."""
        self.context = context

    @abc.abstractmethod
    def build_estimator(self) -> Any:
        """Returns a `tf.estimator.Estimator`, its optimizer wrapped by the context.

        Its model function, parameters and warm start are used; its `model_dir` is not.
        """

    @abc.abstractmethod
    def build_train_spec(self) -> Any:
        """Returns a `tf.estimator.TrainSpec`, its Dataset wrapped by the context.

        A Dataset is repeated for ever. `max_steps` is not used.
        """

    @abc.abstractmethod
    def build_validation_spec(self) -> Any:
        """Returns a `tf.estimator.EvalSpec`.

        Its `steps` are 100 batches where nothing is said; None is one pass. Exporters are not used.
        """

    def build_serving_input_receiver_fns(self) -> dict[str, ServingInputReceiverFn]:
        """Returns name → serving input receiver function.

        Each is exported with every checkpoint; the first of the best checkpoint is published.
        Without any, the model is published with the features of the validation data for inputs.
        """
        return {}

    @classmethod
    def open_controller(cls, run: TrialRun) -> EstimatorController:
        """Builds the trial; its sessions open when they are needed."""
        run, strategy = fit_to_devices(run, is_graph=True)
        seed_generators(run.seed)
        context = cls.trial_context_class(EnvContext.of(run), HorovodContext.of(run))
        trial, arguments = cls.of_context(context)
        return EstimatorController(
            context,
            run,
            trial.build_estimator(*arguments),
            trial.build_train_spec(*arguments),
            trial.build_validation_spec(*arguments),
            trial.build_serving_input_receiver_fns(*arguments),
            strategy=strategy if run.slots_here > 1 else None,
            code=code_file(cls.__module__),
        )

    @classmethod
    def of_context(cls, context: EstimatorTrialContext) -> tuple[Any, tuple[Any, ...]]:
        """Returns the trial, and what its methods take."""
        return cls(context), ()
