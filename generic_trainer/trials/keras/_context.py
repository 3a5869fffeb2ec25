"""The context of a Keras trial: wraps model, data and optimizers, and notes `compile` and `fit`."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import tensorflow as tf

from generic_trainer.trials._context import NO_DATASET, TrialContext
from generic_trainer.trials._dataset_cache import DatasetCache
from generic_trainer.trials.errors import CheckFailedError, InvalidExperimentException

# Arguments of Keras 2's compile, after optimizer and loss.
_COMPILE = ("metrics", "loss_weights", "weighted_metrics", "run_eagerly")
# Arguments of `fit` that Keras 3 has no more.
_READING = ("workers", "use_multiprocessing", "max_queue_size")
# Methods of a wrapped model whose calls are noted instead of carried out.
_NOTED = ("compile", "fit", "fit_generator")
# See `TFKerasContext.configure_fit`.
_FIT_OPTIONS: Mapping[str, Any] = {
    "verbose": True,
    "class_weight": None,
    "workers": 1,
    "use_multiprocessing": False,
    "max_queue_size": 10,
    "shuffle": False,
    "validation_steps": None,
}


class TFKerasTrainConfig(NamedTuple):
    """The data and callbacks that `fit` was called with.

    Source: `determined.keras.TFKerasTrainConfig` of Determined 0.12 and 0.13.
    """

    training_data: Any
    validation_data: Any
    callbacks: list[Any]


class TFKerasExperimentalContext(DatasetCache):
    """What was experimental in Determined: cached datasets."""


class TFKerasContext(TrialContext):
    """What Keras models are trained through.

    Attributes:
        fit_options: as `configure_fit` has set them.
        train_config: the arguments of the wrapped model's `fit`; missing before that call.
        model: the one that was wrapped; None before.
        on_fit: is called by `fit` of the wrapped model, once it has noted its arguments.
        optimizers: those that were wrapped.
        own_names: Keras' name of a metric → the name that the trial reports it under as well.
    """

    experimental_class = TFKerasExperimentalContext
    train_config: TFKerasTrainConfig
    model: Any = None
    on_fit: Callable[[], None] | None = None
    _compile: inspect.BoundArguments | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes a trial; see `TrialContext`."""
        super().__init__(*args, **kwargs)
        self.fit_options = SimpleNamespace(**_FIT_OPTIONS)
        self.optimizers: list[Any] = []
        self.own_names: dict[str, str] = {}

    def with_own_names(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the metrics, and those that the trial has named itself under these names too."""
        named = {name: metrics[key] for key, name in self.own_names.items() if key in metrics}
        return {**metrics, **named}

    def wrap_model(self, model: Any) -> Any:
        """Returns the model, whose `compile` and `fit` are now noted instead of carried out.

        Call its `compile` afterwards: the harness compiles it with these arguments, and trains it.

        Args:
            model: a Keras model, not compiled yet.
        """
        if not self._run.managed_training:
            return model
        self.model = model
        self._compile = None
        for name in _NOTED:  # Keras would track an attribute that is set as usual
            note = functools.partial(getattr(self, f"_note_{name}"), model)
            object.__setattr__(model, name, note)
        return model

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
        class_weight: Mapping[int, float] | None = None,
        workers: int | None = None,
        use_multiprocessing: bool | None = None,
        max_queue_size: int | None = None,
        shuffle: bool | None = None,
        validation_steps: int | None = None,
    ) -> None:
        """Sets how to train; options whose argument is None stay as they were.

        Args:
            verbose: passed on to callbacks.
            class_weight: class → weight of its records in training.
            workers: threads that read a Keras Sequence; 0 is the training thread.
            use_multiprocessing: has no effect: they are threads.
            max_queue_size: batches that they read ahead.
            shuffle: whether the training batches of arrays are read in another order in each epoch,
                drawn with the trial's seed; False by default. Of other data it has no effect.
            validation_steps: batches of a Dataset that are validated on; by default all.
        """
        given = locals()
        changes = {name: given[name] for name in _FIT_OPTIONS if given[name] is not None}
        vars(self.fit_options).update(changes)

    def wrapped(self, loaders: Iterable[Any]) -> list[Any]:
        """Returns data, with their Datasets wrapped if none has been wrapped yet."""
        if self._has_dataset:
            return [*loaders]
        return [
            self.wrap_dataset(data) if isinstance(data, tf.data.Dataset) else data
            for data in loaders
        ]

    def check_dataset(self) -> None:
        """Raises `CheckFailedError` if no dataset was wrapped or cached."""
        if not (self._has_dataset or self.experimental.used):
            raise CheckFailedError(NO_DATASET)

    def compile_model(self) -> Any:
        """Compiles the model with the user's arguments, and returns it.

        Raises:
            CheckFailedError: no model was wrapped, or not compiled, or has no optimizer.
        """
        model = self.model
        if model is None:
            raise CheckFailedError("Please call wrap_model(...).")
        if "compile" in vars(model):
            if self._compile is None:
                raise CheckFailedError("Please call model.compile(...) after wrap_model(...).")
            for name in _NOTED:
                object.__delattr__(model, name)
            _, *args = self._compile.args
            model.compile(*args, **self._compile.kwargs)
        if not self.optimizers and getattr(model, "optimizer", None) is not None:
            self.optimizers = [model.optimizer]
        if not self.optimizers:
            raise CheckFailedError(
                "Please pass your optimizer into `context.wrap_optimizer(optimizer)`, or to "
                "model.compile(optimizer=...)."
            )
        return model

    def _note_compile(self, model: Any, *args: Any, **kwargs: Any) -> None:
        compile = type(model).compile
        if compile is tf.keras.Model.compile:
            # Trials were written for Keras 2; in Keras 3 these stand in another place.
            kwargs = {**dict(zip(_COMPILE, args[2:], strict=False)), **kwargs}
            args = args[:2]
        bound = inspect.signature(compile).bind(model, *args, **kwargs)
        if model is self.model:  # not one that was wrapped before
            self._compile = bound

    def _note_fit(self, model: Any, *args: Any, **kwargs: Any) -> None:
        reading = {name: kwargs.pop(name) for name in _READING if name in kwargs}
        bound = inspect.signature(type(model).fit).bind(model, *args, **kwargs)
        self._fitted({**bound.arguments, **reading})

    def _note_fit_generator(self, model: Any, generator: Any, *args: Any, **kwargs: Any) -> None:
        names = ("steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data")
        self._fitted({"x": generator, **dict(zip(names, args, strict=False)), **kwargs})

    def _fitted(self, arguments: dict[str, Any]) -> None:
        if self._compile is None:
            raise InvalidExperimentException("Must call .compile before calling .fit().")
        x, *labels = (arguments.get(name) for name in ("x", "y", "sample_weight"))
        options = {name: arguments[name] for name in _FIT_OPTIONS if name in arguments}
        self.train_config = TFKerasTrainConfig(
            x if labels[0] is None else (x, *(part for part in labels if part is not None)),
            arguments.get("validation_data"),
            list(arguments.get("callbacks") or []),
        )
        self.configure_fit(**options)
        if self.on_fit is not None:
            self.on_fit()


class TFKerasTrialContext(TFKerasContext):
    """The context of a `TFKerasTrial`.

    Source: `determined.keras.TFKerasTrialContext` of Determined 0.12 and 0.13.
    """
