"""A model whose `compile` and `fit` are written down instead of carried out."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer.trials.errors import InvalidExperimentException

__all__ = ["FitCall", "Recorded"]


@dataclasses.dataclass(frozen=True)
class FitCall:
    """What `fit` was called with, as far as it counts.

    Attributes:
        training: the training data.
        validation: the validation data; None if there are none.
        callbacks: the callbacks.
        options: arguments that `configure_fit` takes.
    """

    training: Any
    validation: Any
    callbacks: list[Any]
    options: dict[str, Any]


# Arguments of Keras 2's compile, after optimizer and loss.
_COMPILE = ("metrics", "loss_weights", "weighted_metrics", "run_eagerly")
# Arguments of `fit` that Keras 3 has no more.
_READING = ("workers", "use_multiprocessing", "max_queue_size")
_OPTIONS = ("verbose", "class_weight", "shuffle", "validation_steps", *_READING)


class Recorded:
    """The calls that a model has got.

    The model itself stays, with all that holds it; until `compile_model`, its class is a subclass
    of its own.

    Attributes:
        model: the model.
        fit_call: what `fit` was called with last.
    """

    def __init__(self, model: Any, on_fit: Callable[[FitCall], None]) -> None:
        """Starts to write down.

        Args:
            model: a Keras model.
            on_fit: is called by `fit`.
        """
        self.model = model
        self._class = type(model)
        self._compile: inspect.BoundArguments | None = None
        self._on_fit = on_fit
        object.__setattr__(model, "__class__", self._subclass())

    @property
    def is_compiled(self) -> bool:
        """Whether `compile` was called."""
        return self._compile is not None

    def compile_model(self) -> Any:
        """Gives the model its class back, compiles it as it was told to, and returns it."""
        assert self._compile is not None
        object.__setattr__(self.model, "__class__", self._class)
        self.model.compile(*self._compile.args, **self._compile.kwargs)
        return self.model

    def _subclass(self) -> type[Any]:
        recorded = self

        def compile(model: Any, *args: Any, **kwargs: Any) -> None:
            args, kwargs = recorded._by_name(args, kwargs)
            recorded._compile = _bound(recorded._class.compile, model, args, kwargs)

        def fit(model: Any, *args: Any, **kwargs: Any) -> None:
            reading = {name: kwargs.pop(name) for name in _READING if name in kwargs}
            bound = _bound(recorded._class.fit, model, args, kwargs)
            recorded._fitted({**bound.arguments, **reading})

        def fit_generator(model: Any, generator: Any, *args: Any, **kwargs: Any) -> None:
            names = ("steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data")
            recorded._fitted({"x": generator, **dict(zip(names, args, strict=False)), **kwargs})

        methods = {"compile": compile, "fit": fit, "fit_generator": fit_generator}
        return type(
            self._class.__name__, (self._class,), {**methods, "__module__": self._class.__module__}
        )

    def _by_name(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Names the arguments of `compile` that stand in another place in Keras 3 than in Keras 2.

        Trials were written for Keras 2.
        """
        if self._class.compile is not tf.keras.Model.compile:
            return args, kwargs
        return args[:2], {**dict(zip(_COMPILE, args[2:], strict=False)), **kwargs}

    def _fitted(self, arguments: dict[str, Any]) -> None:
        if not self.is_compiled:
            raise InvalidExperimentException("Must call .compile before calling .fit().")
        parts = [arguments.get(name) for name in ("x", "y", "sample_weight")]
        training = parts[0] if parts[1] is None else tuple(p for p in parts if p is not None)
        self._on_fit(
            FitCall(
                training,
                arguments.get("validation_data"),
                list(arguments.get("callbacks") or []),
                {name: arguments[name] for name in _OPTIONS if name in arguments},
            )
        )


def _bound(
    method: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    bound = inspect.signature(method).bind(model, *args, **kwargs)
    first = next(iter(bound.arguments))
    del bound.arguments[first]
    parameters = list(bound.signature.parameters.values())[1:]
    bound._signature = bound.signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return bound
