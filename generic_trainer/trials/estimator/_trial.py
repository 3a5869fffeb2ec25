"""`EstimatorTrial` of Determined and of PEDL, base classes of users' trials; `estimator.init`."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from generic_trainer import estimator as tf_estimator
from generic_trainer.trials import _pedl
from generic_trainer.trials._context import NativeContext, fit_to_workers, seed_generators
from generic_trainer.trials._scripts.start import Init, Start
from generic_trainer.trials._trial import HorovodContext, HparamsTrial, Trial, TrialRun
from generic_trainer.trials.estimator._context import EstimatorContext, EstimatorTrialContext
from generic_trainer.trials.estimator._controller import EstimatorController

ServingInputReceiverFn = Callable[..., Any]

T = TypeVar("T")


def _in_a_graph_if_needed(build: Callable[..., T], *arguments: Any) -> T:
    """Calls a function whose placeholders may need a graph, as in Determined, which ran without v2.

    They are patterns of what a model is served for. Nothing else of a trial may be built so: the
    optimizers of Keras belong to the graph, or to none, in which they are made.
    """
    try:
        return build(*arguments)
    except RuntimeError:  # which tf.compat.v1.placeholder raises, and has no class for
        if not tf.executing_eagerly():
            raise
    with tf.Graph().as_default():
        return build(*arguments)


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

    Each method is called once per trial, in the order in which they are listed here. If the module
    takes `tf1` as its TensorFlow, they run with the behavior of TensorFlow 1: without eager
    execution, in a graph that is thrown away, and with shapes of `Dimension`s.

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

        Its `steps` are 100 batches by default; None is one pass. Exporters are not used.
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
        run, _ = fit_to_workers(run, is_graph=True)
        seed_generators(run.seed)
        context = cls.trial_context_class(run, HorovodContext(run.workers > 1))
        with tf_estimator.first_behavior(cls.__module__):
            trial, arguments = cls.of_context(context)
            parts = (
                trial.build_estimator(*arguments),
                trial.build_train_spec(*arguments),
                trial.build_validation_spec(*arguments),
                _in_a_graph_if_needed(trial.build_serving_input_receiver_fns, *arguments),
            )
        return EstimatorController(context, run, *parts)

    @classmethod
    def of_context(cls, context: EstimatorTrialContext) -> tuple[Any, tuple[Any, ...]]:
        """Returns the trial, and the arguments of its methods."""
        return cls(context), ()


class HparamsEstimatorTrial(HparamsTrial, EstimatorTrial):
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
    def of_context(cls, context: EstimatorTrialContext) -> tuple[Any, tuple[Any, ...]]:
        """Returns the trial, and the arguments of its methods."""
        _pedl.running.set(context)
        return cls(context.get_hparams()), (context.get_hparams(),)


class EstimatorNativeContext(EstimatorContext, NativeContext):
    """The context of a script, which trains an estimator without a trial class.

    ::

        from generic_trainer.trials.native import estimator

        context = estimator.init(config, local=True, test=True)
        optimizer = context.wrap_optimizer(make_optimizer(context.get_hparam("learning_rate")))
        context.train_and_evaluate(make_estimator(optimizer), train_spec, eval_spec)

    Attributes:
        serving_input_receiver_fns: name → serving input receiver function; empty at first.

    Source: `determined.estimator.EstimatorNativeContext` of Determined 0.12 and 0.13.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes a trial; see `TrialContext`."""
        super().__init__(*args, **kwargs)
        self.serving_input_receiver_fns: dict[str, Callable[..., Any]] = {}
        self._start: Start | None = None

    def train_and_evaluate(self, estimator: Any, train_spec: Any, eval_spec: Any) -> None:
        """Trains by the experiment configuration; see `EstimatorTrial` for the arguments."""
        parts = (estimator, train_spec, eval_spec)
        if self._start is None:
            tf_estimator.train_and_evaluate(*parts)
        else:
            receivers = self.serving_input_receiver_fns
            self._start(EstimatorController(self, self._run, *parts, receivers))

    @classmethod
    def make(cls, run: TrialRun, start: Start) -> EstimatorNativeContext:
        """Returns the context of a script; see `Init`."""
        run, _ = fit_to_workers(run, is_graph=True)
        context = cls(run)
        context._start = start
        return context


init = Init(EstimatorNativeContext.make)
