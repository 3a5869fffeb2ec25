"""What callbacks and steps make of a model while its fit runs, beside variables.

A resumed fit restores numbers, and makes the step anew if a callback has done so. It cannot repeat
a call of `compile`, because it calls no callback for what is done::

    run_fn      model.compile(Adam(1e-3), "mse"); model.fit(...)
    epoch 3     a callback calls model.compile(SGD(1e-4), "mae")
    killed      the next run_fn compiles Adam and "mse", and its epoch 3 is replayed

So a checkpoint has in which parts the model was compiled otherwise than as the fit began. If a
resumed fit is not compiled so at the end of its replay, it ends before it trains. It is compiled
so if it resumes in an epoch whose `on_epoch_begin` compiles: that is called once more. And the
usual case is repeated, another optimizer of the same class after layers have thawed: its numbers
and variables are those of the checkpoint.
"""

import collections
import contextlib
import json
import logging
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core.texts import listed
from generic_trainer.errors import TrainingError
from generic_trainer.training._walk import walk
from generic_trainer.training.resume._state import (
    OF_CALLBACKS,
    TRAINABLE,
    attributes_of,
    parts_of_optimizers,
    set_attributes,
)

# Arguments of `compile` that are looked at otherwise, or that decide how a step runs.
_LEFT_OUT = {"optimizer", "loss", "run_eagerly", "steps_per_execution", "jit_compile"}
_PLAIN = (type(None), bool, int, float, str, bytes)

_logger = logging.getLogger(__name__)


class Changes:
    """What has changed of a model since its fit began.

    Attributes:
        lacks_variables: whether `compile` was called, so that only the next step makes variables
            of optimizer and metrics.
        made: names of the variables that a resumed fit has when it goes on: what callbacks make at
            the start of the first epoch, and then the first step.
    """

    def __init__(self, model: Any) -> None:
        """Looks at a model before the first epoch, when `on_train_begin` has been called."""
        self._model = model
        self._attributes = attributes_of(model)
        self._is_made_anew = False
        # `id`s of objects that were looked at → references to them, and their text.
        self._known: dict[tuple[Any, ...], Any] = {}
        # Part of what `compile` sets → a text of it, when the fit began and as it is now.
        self._compiled = self._compiled_now = self._look(self._attributes)
        self._of_compile = self._parts_of_compile()
        self.lacks_variables = False
        self.made: set[str] = set()
        self._is_logged = self._is_restored = False
        # The changes before the first step, and after the one that was last traced.
        self._traced: list[dict[str, Any]] = []
        self._is_traced = False
        self._sets: dict[str, Any] = {}  # for the next step, which is traced once more

    def step_is_made_anew(self) -> None:
        """Notes that a callback has made the step anew, after a `compile` perhaps."""
        self._is_made_anew, self._is_traced = True, False
        parts, self._of_compile = self._of_compile, self._parts_of_compile()
        self.lacks_variables = [part() for part in parts] != [part() for part in self._of_compile]
        self._compiled_now = self._look(attributes_of(self._model))
        names = [*self._compiled_anew()]
        if names and not self._is_logged and not self._is_of_same_class(names, self._compiled):
            self._is_logged = True
            _logger.warning(
                "If this fit is resumed in a later epoch, it ends with an error: a callback has "
                "compiled the model anew, with another %s, which a resumed fit cannot repeat. Call "
                "compile in run_fn, between two fits with names of their own, such as "
                "resume_callbacks(fn_args, name='fine_tuning').",
                listed(names),
            )

    def log_made_late(self, names: Iterable[str]) -> None:
        """Warns, once, of variables in a checkpoint that no resumed fit can have when it goes on.

        Such are those of an optimizer in a callback that fits a model of its own in `on_epoch_end`.
        """
        late = sorted({*names} - self.made)
        if late and self.made and not self._is_made_anew:
            self.made.update(late)
            _logger.warning(
                "If this fit is resumed after that, it ends with an error: a callback or a "
                "validation has made %s beside the first step, and a resumed fit calls neither "
                "before it goes on. Make them before, in on_train_begin for example: those of an "
                "optimizer by its build method.",
                listed(late),
            )

    def note_made(self, before: Iterable[str], after: Iterable[str]) -> None:
        """Takes the names of all variables before and after the first step.

        Some may be those of callbacks that act at the start of a batch.
        """
        late = {name for name in before if name.startswith(OF_CALLBACKS)} - self.made
        self.made = {*after} - late

    @contextlib.contextmanager
    def traced(self, saved: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Takes a step within the context, and notes what its graph keeps of Python's numbers.

        Callbacks may have set some before it, and set others later, which change no graph. A
        resumed fit calls no callback for that: it has the numbers of then while it traces.

        Args:
            saved: values of the checkpoint, for the first step of a replay.
        """
        numbers, self._sets = self._sets, {}
        if saved is not None:
            self._traced, self._is_traced = saved["traced"], True
            numbers = self._traced[0]
        if not self._is_traced:
            first = self._traced[:1] or [self._changed()]
            yield
            self._traced, self._is_traced = [*first, self._changed()], True
            return
        if not numbers:
            yield
            return
        now = attributes_of(self._model)
        set_attributes(self._model, numbers)
        try:
            yield
        finally:
            set_attributes(self._model, {path: now[path] for path in numbers if path in now})

    def _changed(self) -> dict[str, Any]:
        return {
            path: value
            for path, value in attributes_of(self._model).items()
            if path.endswith(f".{TRAINABLE}") or value != self._attributes.get(path)
        }

    def values(self) -> dict[str, Any]:
        """Returns the changes so far, for a checkpoint."""
        return {
            "attributes": self._changed(),
            "traced": self._traced,
            "is_made_anew": self._is_made_anew,
            "compiled_anew": self._compiled_anew(),
        }

    @contextlib.contextmanager
    def restored(self, saved: Mapping[str, Any], path: str, *, is_done: bool) -> Iterator[None]:
        """Restores variables within the context, of a model that is compiled as it was then.

        Args:
            saved: values of the checkpoint.
            path: of the checkpoint.
            is_done: whether nothing is left to train, so that the loss no longer matters.

        Raises:
            TrainingError: the model is compiled otherwise.
        """
        then = {**self._compiled, **saved["compiled_anew"]}
        differing = _differing(self._compiled_now, then)
        is_repeated = self._is_of_same_class(differing, then)
        if differing and not is_done and not is_repeated:
            raise _compiled_otherwise(differing, path)
        with self.explained(saved, path):
            if differing and is_repeated:
                self._make_optimizer(saved["attributes"])
            yield
        self._traced = saved["traced"]
        self._is_traced = len(self._traced) > 1
        if self._is_traced and saved["is_made_anew"] and not self._model.run_eagerly:
            self._sets = {**self._attributes, **self._traced[-1]}
        if differing and not is_repeated and not self._is_restored:
            self._is_restored = True
            _logger.warning(
                "The fit that had ended has been restored, but not the %s that a callback had "
                "compiled the model with: later evaluations and fits use what run_fn compiles.",
                listed(differing),
            )

    @contextlib.contextmanager
    def explained(self, saved: Mapping[str, Any], path: str) -> Iterator[None]:
        """Names a `compile` as the cause if a checkpoint does not fit; see `restored`."""
        try:
            yield
        except TrainingError as error:
            if then := saved["compiled_anew"]:
                raise _compiled_otherwise([*then], path) from error
            raise

    def _compiled_anew(self) -> dict[str, str | None]:
        names = _differing(self._compiled_now, self._compiled)
        return {name: self._compiled_now.get(name) for name in names}

    def _is_of_same_class(self, names: Sequence[str], texts: Mapping[str, str | None]) -> bool:
        """Returns whether all that differs is an optimizer of the class that the model has."""
        now = self._compiled_now
        classes = [(_class(now.get(name)), _class(texts.get(name))) for name in names]
        return (
            hasattr(getattr(self._model, "optimizer", None), "build")
            and all(name.partition(".")[0] == "optimizer" for name in names)
            and all(one == other for one, other in classes)
        )

    def _make_optimizer(self, attributes: Mapping[str, Any]) -> None:
        """Makes an optimizer for the layers that were trainable then."""
        model = self._model
        with model.distribute_strategy.scope():
            model.optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
            set_attributes(model, attributes)  # which are trainable, and what is averaged
            model.optimizer.build(model.trainable_variables)

    def _parts_of_compile(self) -> list[Callable[[], Any]]:
        """Returns references to objects that each `compile` makes, or takes."""
        model = self._model
        made = [model.compiled_loss] if hasattr(model, "compiled_loss") else model.metrics[:1]
        return [*map(_reference, (getattr(model, "optimizer", None), *made))]

    def _look(self, attributes: Mapping[str, Any]) -> dict[str, str]:
        """Returns part of what `compile` sets → a text that is another one if the part is."""
        config: dict[str, Any] = {}
        texts: dict[str, str] = {}
        with warnings.catch_warnings(), contextlib.suppress(Exception):  # of a user's class
            warnings.simplefilter("ignore")
            config = dict(self._model.get_compile_config() or {})
            texts = {name: _text(value) for name, value in config.items() if name not in _LEFT_OUT}
        # A `compile` of the user's sets attributes of other names.
        for name, value in vars(self._model).items():
            if name == "loss" or _is_loss(self._model, name, value):
                parts = tf.nest.flatten(value)
                own = _text(config.get("loss")) if name == "loss" else ""
                keys = [*value] if isinstance(value, Mapping) else []
                texts[name] = self._text_of(
                    parts, f"{keys} {own} {[*map(_text_of_loss, parts)]}", keys
                )
        frozen = [path for path, value in attributes.items() if path.endswith(f".{TRAINABLE}")]
        frozen = [path for path in frozen if not attributes[path]]
        deferred: dict[str, Any] = {}
        collections.deque(walk(self._model, deferred=deferred), maxlen=0)
        for path, part in parts_of_optimizers(deferred):
            own = f" {frozen}" if hasattr(part, "apply_gradients") else ""
            texts[path[1:]] = self._text_of([part], _class_name(part) + own)
        return texts

    def _text_of(self, parts: Sequence[Any], text: str, keys: Sequence[Any] = ()) -> str:
        """Returns the text that objects had at first: changes of their attributes are restored."""
        key = (*map(str, keys), *map(id, parts))
        references, known = self._known.get(key, ((), text))
        if [id(reference()) for reference in references] != [*map(id, parts)]:
            self._known[key] = [*map(_reference, parts)], text
            return text
        return str(known)


def _differing(one: Mapping[str, str | None], other: Mapping[str, str | None]) -> list[str]:
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


def _is_loss(model: Any, name: str, value: Any) -> bool:
    if name[0] == "_" or name.endswith("_function") or hasattr(type(model), name):
        return False
    return isinstance(value, types.FunctionType) or hasattr(value, "reduction")


def _reference(part: Any) -> Callable[[], Any]:
    """Returns what returns a part, as long as another holds it: an optimizer may be large."""
    try:
        return weakref.ref(part)
    except TypeError:
        return lambda: part


def _class_name(part: Any) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def _class(text: str | None) -> str:
    """Returns the class in the text of an optimizer."""
    return (text or "").partition(" ")[0]


def _text(config: Any) -> str:
    return json.dumps(_without_names(config), sort_keys=True, default=str)


def _without_names(config: Any) -> Any:
    """Leaves out the names of objects, which Keras numbers."""
    if isinstance(config, Mapping):
        return {
            str(key): _without_names(value)
            for key, value in config.items()
            if key != "name" or not isinstance(value, str)
        }
    return [*map(_without_names, config)] if isinstance(config, list | tuple) else config


def _text_of_loss(loss: Any) -> str:
    """Returns the code of a function and what is around it, whose config is only its name."""
    if not isinstance(loss, types.FunctionType):
        return str(loss) if isinstance(loss, _PLAIN) else type(loss).__qualname__
    code, around = loss.__code__, [*loss.__code__.co_consts, *(loss.__defaults__ or ())]
    for cell in loss.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            around.append(cell.cell_contents)
    plain = [each if isinstance(each, _PLAIN) else type(each).__qualname__ for each in around]
    return f"{loss.__module__}.{loss.__qualname__} {code.co_code.hex()} {code.co_names} {plain}"


def _compiled_otherwise(names: list[str], path: str) -> TrainingError:
    return TrainingError(
        f"This fit cannot be resumed from the checkpoint {path}: a callback had compiled the model "
        f"while the fit ran, with another {listed(names)}, and a resumed fit calls no callback for "
        "epochs that are done. Call compile in run_fn, between two fits with names of their own, "
        "such as resume_callbacks(fn_args, name='fine_tuning'), and delete the checkpoints to "
        "start afresh."
    )
