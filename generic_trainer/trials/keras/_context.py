"""The context of a Keras trial: wraps model, data and optimizers, and notes `compile` and `fit`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from generic_trainer.trials._context import TrialContext
from generic_trainer.trials._dataset_cache import DatasetCache
from generic_trainer.trials.errors import CheckFailedError, InvalidExperimentException

_UNCHANGED: Any = object()
_MAY_BE_NONE = ("class_weight", "validation_steps")
# Arguments of Keras 2's compile, after optimizer and loss.
_COMPILE = ("metrics", "loss_weights", "weighted_metrics", "run_eagerly")
# Arguments of `fit` that Keras 3 has no more.
_READING = ("workers", "use_multiprocessing", "max_queue_size")


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """See `TFKerasContext.configure_fit`."""

    verbose: Any = True
    class_weight: Mapping[int, float] | None = None
    workers: int = 1
    use_multiprocessing: bool = False
    max_queue_size: int = 10
    validation_steps: int | None = None


class TFKerasTrainConfig(NamedTuple):
    """What `fit` was called with, as far as it counts; `options` are those of `configure_fit`.

    Source: `determined.keras.TFKerasTrainConfig` of Determined 0.12 and 0.13.
    """

    training_data: Any
    validation_data: Any
    callbacks: list[Any]
    options: Mapping[str, Any] = {}


class TFKerasExperimentalContext(DatasetCache):
    """What was experimental in Determined: cached datasets."""


class TFKerasContext(TrialContext):
    """What Keras models are trained through.

    Attributes:
        experimental: `cache_train_dataset` and `cache_validation_dataset`.
        fit_options: as `configure_fit` has set them.
        train_config: the arguments of the wrapped model's `fit`; missing before that call.
        model: the one that was wrapped; None before.
        optimizers: those that were wrapped.
    """

    train_config: TFKerasTrainConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes a trial; see `TrialContext`."""
        super().__init__(*args, **kwargs)
        self.experimental = TFKerasExperimentalContext(self)
        self.fit_options = FitOptions()
        self.optimizers: list[Any] = []
        self._train: Callable[[], None] | None = None
        self.model: Any = None
        self._recorded: _RecordedModel | None = None

    def wrap_model(self, model: Any) -> Any:
        """Returns the model, whose `compile` and `fit` are now noted instead of carried out.

        Call its `compile` afterwards: the harness compiles it with these arguments, and trains it.

        Args:
            model: a Keras model, not compiled yet.
        """
        if not self._run.managed_training:
            return model
        self.model, self._recorded = model, _RecordedModel(model, self._fitted)
        return model

    def take_compiled(self, model: Any) -> None:
        """Takes a model as it was compiled, without noting anything."""
        self.model, self._recorded = model, None

    @property
    def share(self) -> tuple[int, int]:
        """The number of this process, and of all that divide batches of arrays among them."""
        if self.takes_whole_batches or self._run.workers == 1:
            return 0, 1
        return self.distributed.get_rank(), self._run.workers

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Returns the optimizer as it is, and has its state kept in checkpoints.

        Needed only for optimizers that `compile` is not given as `optimizer`, such as a GAN's.
        """
        if self._run.managed_training:
            self.optimizers.append(optimizer)
        return optimizer

    def configure_fit(
        self,
        verbose: Any = None,
        class_weight: Mapping[int, float] | None = _UNCHANGED,
        workers: int | None = None,
        use_multiprocessing: bool | None = None,
        max_queue_size: int | None = None,
        validation_steps: int | None = _UNCHANGED,
    ) -> None:
        """Sets how to train; arguments that are left out stay as they were.

        Args:
            verbose: passed on to callbacks.
            class_weight: class → weight of its records in training.
            workers: threads that read a Keras Sequence; 0 is the training thread.
            use_multiprocessing: has no effect: they are threads.
            max_queue_size: batches that they read ahead.
            validation_steps: batches of a Dataset that are validated on; None is all.
        """
        given = dict(locals())
        changes = {
            field.name: given[field.name]
            for field in dataclasses.fields(FitOptions)
            if given[field.name] is not (_UNCHANGED if field.name in _MAY_BE_NONE else None)
        }
        self.fit_options = dataclasses.replace(self.fit_options, **changes)

    def on_fit(self, train: Callable[[], None]) -> None:
        """Has `fit` of the wrapped model call a function, once it has noted its arguments."""
        self._train = train

    def check_dataset(self) -> None:
        """Raises `CheckFailedError` if no dataset was wrapped or cached."""
        if not (self._has_dataset or self.experimental.used):
            raise CheckFailedError(
                "Please pass your datasets (train and test) into `context.wrap_dataset(dataset)` "
                "right after creating them, or cache them with `context.experimental`."
            )

    def compile_model(self) -> Any:
        """Compiles the model with the user's arguments, and returns it.

        Raises:
            CheckFailedError: no model was wrapped, or not compiled, or has no optimizer.
        """
        model = self.model
        if model is None:
            raise CheckFailedError("Please call wrap_model(...).")
        if self._recorded is not None:
            self._recorded.compile_model()
        if not self.optimizers and getattr(model, "optimizer", None) is not None:
            self.optimizers = [model.optimizer]
        if not self.optimizers:
            raise CheckFailedError(
                "Please pass your optimizer into `context.wrap_optimizer(optimizer)`, or to "
                "model.compile(optimizer=...)."
            )
        return model

    def _fitted(self, call: TFKerasTrainConfig) -> None:
        self.train_config = call
        self.configure_fit(**call.options)
        if self._train is not None:
            self._train()


class TFKerasTrialContext(TFKerasContext):
    """The context of a `TFKerasTrial`.

    Source: `determined.keras.TFKerasTrialContext` of Determined 0.12 and 0.13.
    """


class _RecordedModel:
    """A model whose `compile` and `fit` are recorded instead of carried out.

    The model itself stays, with all that holds it; until `compile_model`, its class is a subclass
    of its own.
    """

    def __init__(self, model: Any, on_fit: Callable[[TFKerasTrainConfig], None]) -> None:
        self._model = model
        self._class = type(model)
        self._compile: inspect.BoundArguments | None = None
        self._on_fit = on_fit
        object.__setattr__(model, "__class__", self._subclass())

    def compile_model(self) -> None:
        """Gives the model its class back and compiles it with the user's arguments."""
        if self._compile is None:
            raise CheckFailedError(
                "Please call model.compile(...). A model must be wrapped first and then compiled."
            )
        object.__setattr__(self._model, "__class__", self._class)
        _, *args = self._compile.args
        self._model.compile(*args, **self._compile.kwargs)

    def _subclass(self) -> type[Any]:
        def compile(model: Any, *args: Any, **kwargs: Any) -> None:
            if self._class.compile is tf.keras.Model.compile:
                # Trials were written for Keras 2; in Keras 3 these stand in another place.
                kwargs = {**dict(zip(_COMPILE, args[2:], strict=False)), **kwargs}
                args = args[:2]
            self._compile = inspect.signature(self._class.compile).bind(model, *args, **kwargs)

        def fit(model: Any, *args: Any, **kwargs: Any) -> None:
            reading = {name: kwargs.pop(name) for name in _READING if name in kwargs}
            bound = inspect.signature(self._class.fit).bind(model, *args, **kwargs)
            self._fitted({**bound.arguments, **reading})

        def fit_generator(model: Any, generator: Any, *args: Any, **kwargs: Any) -> None:
            names = ("steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data")
            self._fitted({"x": generator, **dict(zip(names, args, strict=False)), **kwargs})

        members: dict[str, Any] = {"compile": compile, "fit": fit, "fit_generator": fit_generator}
        members["__module__"] = self._class.__module__
        return type(self._class.__name__, (self._class,), members)

    def _fitted(self, arguments: dict[str, Any]) -> None:
        if self._compile is None:
            raise InvalidExperimentException("Must call .compile before calling .fit().")
        x, *labels = (arguments.get(name) for name in ("x", "y", "sample_weight"))
        training = x if labels[0] is None else (x, *(part for part in labels if part is not None))
        options = [field.name for field in dataclasses.fields(FitOptions)]
        self._on_fit(
            TFKerasTrainConfig(
                training,
                arguments.get("validation_data"),
                list(arguments.get("callbacks") or []),
                {name: arguments[name] for name in options if name in arguments},
            )
        )
