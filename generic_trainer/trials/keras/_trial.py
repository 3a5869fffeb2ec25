"""`TFKerasTrial` and PEDL's `KerasTrial`, base classes of users' trials, and `keras.init`."""

from __future__ import annotations

import abc
import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core.keras import LEGACY_VARIABLE, is_keras_3
from generic_trainer.errors import ConfigurationError, ModuleFileError
from generic_trainer.training import distributed
from generic_trainer.trials import _pedl
from generic_trainer.trials._context import NativeContext, fit_to_workers
from generic_trainer.trials._scripts.start import Init, Start
from generic_trainer.trials._trial import HorovodContext, HparamsTrial, Trial, TrialRun
from generic_trainer.trials.errors import InvalidExperimentException
from generic_trainer.trials.keras._context import TFKerasContext, TFKerasTrialContext
from generic_trainer.trials.keras._controller import TFKerasController

_KERAS_3_REFUSES = (
    "build_model failed with Keras 3. A model that was written for Keras 2 needs the environment "
    "variable %s=1, set before TensorFlow is imported."
)

_logger = logging.getLogger(__name__)


class TFKerasTrial(Trial, abc.ABC):
    """A compiled Keras model with its data, of Keras 2 or Keras 3.

    ::

        class IrisTrial(TFKerasTrial):
            def __init__(self, context: TFKerasTrialContext) -> None:
                self.context = context

            def build_model(self):
                model = self.context.wrap_model(tf.keras.Sequential([...]))
                optimizer = tf.keras.optimizers.RMSprop(self.context.get_hparam("learning_rate"))
                model.compile(optimizer, "categorical_crossentropy", ["accuracy"])
                return model

            def build_training_data_loader(self):
                return train_x, train_y

            def build_validation_data_loader(self):
                return test_x, test_y

    1. A step is one global batch. Training metrics are Keras' running means over a workload,
       validation metrics those of `model.evaluate`, weighted by records, `val_` before their names.
    2. The methods are called once per trial: training data, validation data, model, callbacks.
    3. Slots are workers. The methods are called in the scope of their strategy; data are batched by
       `context.get_per_slot_batch_size()`.
    4. If the module or `__init__` turns eager execution off, it is on again from the data
       loaders on: a step is a graph all the same. Of `session_config` soft placement counts.

    Source: `determined.keras.TFKerasTrial` of Determined 0.12 and 0.13.
    """

    trial_context_class = TFKerasTrialContext

    def __init__(self, context: TFKerasTrialContext) -> None:
        """Takes the trial's context; a subclass need not call this."""
        self.context = context

    @abc.abstractmethod
    def build_model(self) -> Any:
        """Builds the model, wraps it by `context.wrap_model`, and then calls its `compile`.

        What is returned is not used: the model is the one that was wrapped.
        """

    @abc.abstractmethod
    def build_training_data_loader(self) -> Any:
        """Returns the training data.

        1. (x, y) or (x, y, sample_weight) of NumPy arrays [N, ...]; x may be a list or a dict of
           arrays, y a list. They are never shuffled, and a partial last batch is dropped.
        2. A `tf.data.Dataset` of batches, wrapped by `context.wrap_dataset` or cached by
           `context.experimental`; it is repeated, so it must not repeat itself.
        3. A `keras.utils.Sequence`, or a `SequenceAdapter` of one; read in order.
        """

    @abc.abstractmethod
    def build_validation_data_loader(self) -> Any:
        """Returns the validation data, likewise; a partial last batch is kept."""

    def session_config(self) -> tf.compat.v1.ConfigProto:
        """Returns the configuration of a session, which eager execution does not have."""
        return tf.compat.v1.ConfigProto(allow_soft_placement=True)

    def keras_callbacks(self) -> list[Any]:
        """Returns callbacks: Keras' own, or of `generic_trainer.trials.keras.callbacks`."""
        return []

    @classmethod
    def open_controller(cls, run: TrialRun) -> TFKerasController:
        """Builds the trial; its checkpoint is restored when it is needed."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(distributed.eager_mode())  # the module may have turned it off
            run, strategy = fit_to_workers(run)
            _seed_keras(run.seed)
            stack.enter_context(strategy.scope())
            context = cls.trial_context_class(run, HorovodContext(run.workers > 1))
            trial = cls.of_context(context)
            if not tf.executing_eagerly():
                stack.enter_context(distributed.eager_mode())
                session = trial.call_optional(trial.session_config, context)
                tf.config.set_soft_device_placement(session.allow_soft_placement)
            stack.enter_context(_old_arguments())
            data = (trial.build_training_data_loader(), trial.build_validation_data_loader())
            try:
                trial.build_in(context)
            except (AttributeError, ImportError, TypeError, ValueError) as error:
                if is_keras_3() and not isinstance(error, ConfigurationError):
                    _logger.error(_KERAS_3_REFUSES, LEGACY_VARIABLE)
                raise
            callbacks = trial.call_optional(trial.keras_callbacks, context)
            return TFKerasController(context, run, *data, callbacks, strategy=strategy)

    @classmethod
    def of_context(cls, context: TFKerasTrialContext) -> Any:
        """Returns the trial."""
        return cls(context)

    def build_in(self, context: TFKerasTrialContext) -> None:
        """Builds the model, for a context to train."""
        self.build_model()

    def call_optional(self, method: Callable[..., Any], context: TFKerasTrialContext) -> Any:
        """Returns what a method returns that a trial need not have."""
        return method()


class KerasTrial(HparamsTrial, TFKerasTrial):
    """A compiled Keras model, and a function of its module that returns the data.

    ::

        from generic_trainer.trials.keras import KerasTrial, data

        def make_data_loaders(experiment_config, hparams):
            size = hparams["batch_size"]
            return data.InMemorySequence(x, y, size), data.InMemorySequence(test_x, test_y, size)

        class DigitsTrial(KerasTrial):
            def build_model(self, hparams):
                model = tf.keras.Sequential([...])
                model.compile(tf.keras.optimizers.Adam(hparams["learning_rate"]), "mse")
                return model

    PEDL had this class as `TFKerasTrial`, too::

        from generic_trainer.trials.keras import KerasTrial as TFKerasTrial

    Source: the documentation of PEDL's Keras trials.
    """

    _data: Sequence[Any]

    @abc.abstractmethod
    def build_model(self, hparams: dict[str, Any]) -> Any:  # type: ignore[override]
        """Returns the model; one that is not compiled is with `optimizer()` and `loss()`."""

    def optimizer(self) -> Any:
        """Returns the optimizer of a model that is not compiled."""
        raise NotImplementedError("build_model returns a model that is not compiled")

    def loss(self) -> Any:
        """Returns the loss of a model that is not compiled."""
        raise NotImplementedError("build_model returns a model that is not compiled")

    def metrics(self) -> list[Any]:
        """Returns the metrics of a model that is not compiled."""
        return []

    def training_metrics(self) -> dict[str, Any]:
        """Returns more metrics of a model that is not compiled: name → function, or Metric.

        They are reported under these names; of a `KerasFunctionalTrial`, name → (output, function).
        """
        return {}

    def validation_metrics(self) -> dict[str, Any]:
        """Returns the same for validations, whose names have no `val_` either."""
        return {}

    def session_config(self, hparams: dict[str, Any] | None = None) -> tf.compat.v1.ConfigProto:
        """Returns the configuration of a session; the argument may be missing in a subclass."""
        return super().session_config()

    def keras_callbacks(self, hparams: dict[str, Any] | None = None) -> list[Any]:
        """Returns callbacks; the argument may be missing in a subclass."""
        return super().keras_callbacks()

    def call_optional(self, method: Callable[..., Any], context: TFKerasTrialContext) -> Any:
        """Returns what a method returns, which may take the hyperparameters."""
        first = next(iter(inspect.signature(method).parameters.values()), None)
        if first is None or (first.name != "hparams" and first.default is not first.empty):
            return method()
        return method(context.get_hparams())

    def build_training_data_loader(self) -> Any:
        """Returns the first part of what `make_data_loaders` returns."""
        return self._data[0]

    def build_validation_data_loader(self) -> Any:
        """Returns the second part."""
        return self._data[1]

    @classmethod
    def of_context(cls, context: TFKerasTrialContext) -> Any:
        """Returns the trial, its data loaded; Datasets are wrapped if none of them was."""
        _pedl.running.set(context)
        loaded = cls.load_data(context.env)
        trial = cls(context.get_hparams())
        trial._data = context.wrapped(loaded)
        return trial

    def build_in(self, context: TFKerasTrialContext) -> None:
        """Builds the model, for a context to train."""
        model = self.build_model(context.get_hparams())
        if getattr(model, "optimizer", None) is None:
            metrics, context.own_names = self._metrics_of_dicts()
            model.compile(self.optimizer(), self.loss(), metrics=metrics)
        context.model = model

    def _metrics_of_dicts(self) -> tuple[Any, dict[str, str]]:
        """Returns the argument of `compile`, and Keras' names of the metrics → their own."""
        training, validation = self.training_metrics(), self.validation_metrics()
        for name in training.keys() & validation.keys():
            if _code_of(training[name]) != _code_of(validation[name]):
                raise ModuleFileError(
                    f"training_metrics and validation_metrics name two metrics {name!r}: "
                    "give one of them another name"
                )
        compiled: dict[str | None, list[Any]] = {}
        own_names = {}
        for name, metric in {**validation, **training}.items():
            output, function = metric if isinstance(metric, tuple) else (None, metric)
            if not isinstance(function, tf.keras.metrics.Metric):
                function = tf.keras.metrics.MeanMetricWrapper(function, name=name)
            compiled.setdefault(output, []).append(function)
            # Keras 3 does not name the output if the model has a single one.
            for key in {function.name, f"{output}_{function.name}" if output else function.name}:
                own_names.update({key: name, f"val_{key}": name})
        shared = [*self.metrics(), *compiled.pop(None, ())]
        if shared and compiled:
            raise ModuleFileError(
                "give an output to each metric of training_metrics and validation_metrics, and "
                f"return none from metrics(), or give none an output; found {sorted(own_names)}"
            )
        return compiled or shared, own_names


def _code_of(metric: Any) -> Any:
    """Returns what tells one metric from another: each call of a method makes objects anew."""
    output, function = metric if isinstance(metric, tuple) else (None, metric)
    if isinstance(function, tf.keras.metrics.Metric):
        return output, type(function), function.get_config()
    return output, getattr(function, "__code__", function)


class KerasFunctionalTrial(KerasTrial):
    """PEDL's trial of a model with several outputs, each with its loss and its metrics.

    ::

        class DigitsTrial(KerasFunctionalTrial):
            def build_model(self, hparams):
                return tf.keras.Model(image, [digit, parity])  # named outputs, not compiled

            def optimizer(self):
                return tf.keras.optimizers.Adam(self.hparams["learning_rate"])

            def losses(self):
                return {"digit": "sparse_categorical_crossentropy", "parity": "mse"}

            def validation_metrics(self):
                return {"accuracy": ("digit", sparse_categorical_accuracy)}

    Source: PEDL's public example of two tasks on MNIST.
    """

    @abc.abstractmethod
    def losses(self) -> dict[str, Any]:
        """Returns the loss of each output."""

    def loss(self) -> Any:
        """Returns the same, as Keras calls it."""
        return self.losses()


class TFKerasNativeContext(TFKerasContext, NativeContext):
    """The context of a script, which trains a Keras model without a trial class.

    ::

        from generic_trainer.trials.native import keras

        context = keras.init(config, local=True, test=True)
        model = context.wrap_model(make_model(context.get_hparam("units")))
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x_train, y_train, validation_data=(x_test, y_test))

    The wrapped model's `fit` and `fit_generator` train by the experiment configuration, and
    return None: `epochs`, `steps_per_epoch` and `batch_size` are not used.

    Source: `determined.keras.TFKerasNativeContext` of Determined 0.12 and 0.13.
    """

    @classmethod
    def make(cls, run: TrialRun, start: Start) -> TFKerasNativeContext:
        """Returns the context of a script; see `Init`."""
        run, strategy = fit_to_workers(run)
        _seed_keras(run.seed)
        context = cls(run)
        # The script builds its model between here and `fit`.
        scope = contextlib.ExitStack()
        scope.enter_context(_old_arguments())
        if run.slots > 1:
            scope.enter_context(strategy.scope())

        def train() -> None:
            scope.close()
            call = context.train_config
            if call.validation_data is None:
                raise InvalidExperimentException(
                    "Please pass validation_data=... to fit; validation_split has no effect here."
                )
            parts = (call.training_data, call.validation_data, call.callbacks)
            start(TFKerasController(context, run, *parts, strategy=strategy))

        context.on_fit = train
        return context


init = Init(TFKerasNativeContext.make)


def _seed_keras(seed: int) -> None:
    """Sets the random generators of Python, NumPy, TensorFlow and Keras.

    Keras 2 is also made to draw from generators that are variables, as Keras 3 always does, so that
    `Dropout` goes on after a restart as it would have gone on without.
    """
    tf.keras.utils.set_random_seed(seed % 2**32)
    tf.random.set_global_generator(tf.random.Generator.from_seed(seed))
    if not is_keras_3():
        tf.keras.backend.experimental.enable_tf_random_generator()


@contextlib.contextmanager
def _old_arguments() -> Iterator[None]:
    """Gives `lr` and `decay` of optimizers their old meaning: newer Keras ignores or refuses them.

    Both Kerases define optimizers whose first argument is `learning_rate`.
    """
    kinds: set[Any] = {
        member for member in vars(tf.keras.optimizers).values() if isinstance(member, type)
    }
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            init = kind.__init__
            is_own = "__init__" in vars(kind)
            if is_own and [*inspect.signature(init).parameters][1:2] == ["learning_rate"]:
                kind.__init__ = _with_old_arguments(init)
                stack.callback(setattr, kind, "__init__", init)
        yield


def _with_old_arguments(init: Callable[..., None]) -> Callable[..., None]:
    default = inspect.signature(init).parameters["learning_rate"].default

    @functools.wraps(init)
    def with_old_arguments(
        self: Any, learning_rate: Any = default, *args: Any, **kwargs: Any
    ) -> None:
        rate = kwargs.pop("lr", learning_rate)
        decay = kwargs.pop("decay", 0)
        init(self, rate, *args, **kwargs)
        if decay:
            self.__class__ = _decaying(type(self), decay)

    return with_old_arguments


def _decaying(kind: Any, decay: float) -> type:
    """Returns the class of an optimizer whose rate, which may be set, decays within its steps."""
    steps: list[str] = []

    def rate(self: Any) -> Any:
        base = kind.learning_rate.fget(self)
        return base / (1 + decay * tf.cast(self.iterations, tf.float32)) if steps else base

    def step(name: str) -> Callable[..., Any]:
        def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
            steps.append(name)
            try:
                return getattr(kind, name)(self, *args, **kwargs)
            finally:
                steps.pop()

        return apply

    def get_config(self: Any) -> dict[str, Any]:
        config = kind.get_config(self)
        schedules = tf.keras.optimizers.schedules
        if not isinstance(config["learning_rate"], dict):  # of a schedule
            schedule = schedules.InverseTimeDecay(float(config["learning_rate"]), 1, decay)
            config["learning_rate"] = schedules.serialize(schedule)
        return config

    def reduce(self: Any) -> tuple[Any, ...]:
        read, *arguments = kind.__reduce__(self)
        return (getattr(kind, read.__name__, read), *arguments)  # no method of this class

    def variables(self: Any) -> Any:
        own = kind.variables.fget(self)
        if steps and steps[-1] in saving:
            base = kind.learning_rate.fget(self)
            return [each for each in own if each is not base]
        return own

    # With a schedule, there is no variable of the rate, and Keras 3 loads all variables or none.
    saving = ["save_own_variables", "load_own_variables"] if is_keras_3() else []
    names = [name for name in ("apply", "apply_gradients", *saving) if hasattr(kind, name)]
    members = {
        "learning_rate": property(rate, kind.learning_rate.fset),
        **{name: step(name) for name in names},
        # What is saved is an optimizer of Keras with a schedule.
        "get_config": get_config,
        "from_config": kind.from_config,
        **{name: getattr(kind, name) for name in ("__module__", "__qualname__")},
        "__reduce__": reduce,
        **({"variables": property(variables)} if saving else {}),
    }
    return type(kind.__name__, (kind,), members)
