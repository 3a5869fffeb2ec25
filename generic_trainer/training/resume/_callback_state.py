"""The state of the callbacks of a `fit`, and what the last step before a checkpoint returned."""

import collections
import contextlib
import copy
import datetime
import itertools
import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.keras import is_class_of_keras
from generic_trainer.errors import ConfigurationError
from generic_trainer.training._plain import is_plain
from generic_trainer.training._walk import classes_of_user
from generic_trainer.training.resume._callback_files import bring_files, lacks_best
from generic_trainer.training.resume._clocks import ClockReadings, now
from generic_trainer.training.resume._held import (
    SET_BY_FIT,
    Attribute,
    cells_of,
    content_of,
    is_attribute,
)
from generic_trainer.training.resume._randomness import is_generator, set_state_of, state_of

_CONTAINERS = (list, dict, set, collections.deque)
_STATES = (dict, tuple, np.ndarray)  # of generators
# What is compared beside paths. Variables are saved with the model, and other objects never are.
_COMPARED = (str, bytes, int, float, complex, np.ndarray, np.generic, tf.Tensor, datetime.date)
_MANY_MEMBERS = 100_000
_LARGE_BYTES = 1 << 20
_MOST_COMPARED_BYTES = 16 << 20  # at each checkpoint

_logger = logging.getLogger(__name__)


class CallbackState:
    """The numbers, strings, arrays and generators of callbacks, and containers of them.

    They are attributes, containers of a class, or variables of the function around the callback.
    Others (open files, models, functions) are made anew by the run that resumes. So are those with
    paths: the new run may have another directory.
    """

    def __init__(
        self, callbacks: Sequence[Any], since: list[float] | None = None, run_dir: str = ""
    ) -> None:
        """Looks at callbacks before their first epoch.

        Args:
            callbacks: of the fit.
            since: the times before their `on_train_begin`, by default the present; see
                `_clocks.now`.
            run_dir: the directory of this run, if their files are copied there.
        """
        self._run_dir = run_dir
        self._callbacks = callbacks
        self._clocks = [ClockReadings(callback, since or now()) for callback in callbacks]
        self._paths = self._with_paths()
        around = [(callback, *item) for callback in callbacks for item in cells_of(callback)]
        cells = [cell for _, _, cell, _ in around]
        # Numbers and texts of objects and classes, which are saved if the fit changes them.
        self._begun = {
            (id(callback), name): content_of(cell)
            for callback, name, cell, _ in around
            if is_attribute(cell)
        }
        self._large = {
            id(value): (value, len(value)) for value in map(content_of, cells) if _is_large(value)
        }
        arrays = {id(array): array for cell in cells for array in _arrays(content_of(cell))}
        # Of large arrays, values that are evenly spread are compared.
        self._stride = 1 + _bytes_of(arrays.values()) // _MOST_COMPARED_BYTES
        # `id` of an array around functions → it, which keeps its `id`, and a checksum.
        self._given = {key: (array, self._checksum(array)) for key, array in arrays.items()}
        self._is_logged = False

    @contextlib.contextmanager
    def hook(self) -> Iterator[None]:
        """Notes what callbacks read from clocks in a hook that is called within the context."""
        with contextlib.ExitStack() as stack:
            for clocks in self._clocks:
                stack.enter_context(clocks.noted())
            yield

    def values(self) -> list[Any]:
        """Returns the present state as plain data."""
        if not self._is_logged:
            texts = self._with_paths().items()
            changed = [key for key, text in texts if self._paths.get(key) != text]
            self._is_logged = bool(changed)
            if changed:
                _logger.warning(
                    "If this fit is resumed, these attributes of callbacks and variables around "
                    "their functions start anew, because they hold paths (texts with a slash): %s",
                    # A container of their class is one.
                    ", ".join(dict.fromkeys(f"{kind}.{name}" for _, kind, name in changed)),
                )
        return [
            self._run_dir,
            *(
                [
                    type(callback).__name__,
                    is_optional(callback),
                    _plain_state(callback),
                    self._around(callback),
                    clocks.state(),
                ]
                for callback, clocks in zip(self._callbacks, self._clocks, strict=True)
            ),
        ]

    def assign(self, values: list[Any], path: str, is_chief: bool = True) -> None:
        """Restores the result of `values`, which comes from the checkpoint with a path.

        It is that of the chief, which may have more callbacks than other workers: TensorBoard's.

        Raises:
            ConfigurationError: other callbacks were saved.
        """
        run_dir, *values = values
        expected = [name for name, may_lack, *_ in values if not may_lack]
        actual = [
            type(callback).__name__ for callback in self._callbacks if not is_optional(callback)
        ]
        if is_chief and expected != actual:
            raise ConfigurationError(
                f"The checkpoint {path} does not fit the callbacks of fit: it was saved with "
                f"{expected}, and now there are {actual}. Pass the same callbacks in the same "
                "order, or delete it to start afresh."
            )
        if is_chief:
            bring_files(run_dir, self._run_dir)
        # Copied, because callbacks change it, and it may be assigned again. `placed` has the `id`s
        # of parts of the copy, so that it has to be there until the end.
        copied = copy.deepcopy(values)
        placed: dict[int, Any] = {}
        states: dict[str, list[Any]] = {}
        restored: list[tuple[ClockReadings, Any]] = []
        for name, _, *state in copied:
            states.setdefault(name, []).append(state)
        for callback, clocks in zip(self._callbacks, self._clocks, strict=True):
            of_name = states.get(type(callback).__name__)
            if of_name:
                state, around, readings = of_name.pop(0)
                is_lacking = is_chief and lacks_best(callback)
                if is_lacking and state.pop("best", None) != callback.best:
                    _logger.warning(
                        "%s begins with the best model anew: expected that of the earlier run in "
                        "%s, found none",
                        type(callback).__name__,
                        callback.filepath,
                    )
                _set_plain_state(callback, state, placed)
                _set(cells_of(callback), around, placed)
                restored.append((clocks, readings))
        for move in [move for clocks, readings in restored for move in clocks.moves(readings)]:
            move()

    def _around(self, callback: Any) -> dict[str, Any]:
        """Returns the state that a callback has in the variables of the functions around its own.

        Only containers, arrays, generators, and numbers and texts that its functions assign
        (`nonlocal`): others are set by the new run. So are arrays that are large and have not
        changed, with their container: they may be all data.
        """
        values = {}
        for name, cell, is_assigned in cells_of(callback):
            value = content_of(cell)
            is_begun = is_attribute(cell) and value == self._begun.get((id(callback), name))
            is_kept = _changes_in_place(value) or isinstance(value, np.ndarray)
            is_kept = is_kept or (is_assigned and not is_begun)
            if is_kept and not _holds_path(value) and not self._has_data(value) and is_plain(value):
                values[name] = value
        return values

    def _has_data(self, value: Any) -> bool:
        if id(value) in self._large and self._large[id(value)][1] == len(value):
            return True
        given = (array for array in _arrays(value) if id(array) in self._given)
        same = (each for each in given if self._given[id(each)][1] == self._checksum(each))
        return _bytes_of(same) > _LARGE_BYTES

    def _checksum(self, array: np.ndarray) -> int:
        # `ravel` would copy an array that lies in memory in neither order; `flat` is slow.
        flat: Any = array.ravel(order="K") if array.flags.forc else array.flat
        return zlib.crc32(flat[:: self._stride].tobytes())

    def _with_paths(self) -> dict[tuple[int, str, str], str]:
        """Returns number, class and name of what holds paths → a text of what is compared."""
        texts = {}
        for number, callback in enumerate(self._callbacks):
            around = [(name, content_of(cell)) for name, cell, _ in cells_of(callback)]
            around = [(name, value) for name, value in around if not _is_large(value)]
            # That of Keras 2 has the path of the file that it wrote last, and uses it no more. A
            # class that is derived from it may have paths of its own that matter.
            is_kerass = is_class_of_keras(type(callback), "ModelCheckpoint")
            for name, value in [*_of_classes(callback).items(), *vars(callback).items(), *around]:
                if _holds_path(value) and not (is_kerass and name.startswith("_")):
                    key = number, type(callback).__name__, name
                    texts[key] = repr([_text(leaf) for leaf in _leaves(value)])
        return texts


def numbers_of(logs: Any) -> list[np.ndarray] | None:
    """Returns what a step has returned as plain data.

    If they are not a model's metrics, Keras has them nowhere else, and callbacks get them at the
    end of an epoch.
    """
    with contextlib.suppress(TypeError, ValueError):  # a step may return anything
        return [np.asarray(value, float) for value in tf.nest.flatten(logs)]
    return None


def logs_like(logs: Any, numbers: list[np.ndarray] | None) -> Any:
    """Returns a result of `numbers_of` in the structure of `logs`.

    Raises:
        ValueError: it is that of another structure.
    """
    if numbers is None:
        return logs
    flat = zip(tf.nest.flatten(logs), numbers, strict=True)
    values = [tf.cast(number, tf.convert_to_tensor(like).dtype) for like, number in flat]
    return tf.nest.pack_sequence_as(logs, values)


def is_optional(callback: Any) -> bool:
    """Returns whether the run that resumes may lack a callback: all that it has are functions."""
    return is_class_of_keras(type(callback), "LambdaCallback")


def _plain_state(callback: Any) -> dict[str, Any]:
    values = {
        name: state_of(value) if is_generator(value) and not is_plain(value) else value
        for name, value in {**_of_classes(callback), **vars(callback)}.items()
        if name not in SET_BY_FIT and not _holds_path(value)
    }
    return {name: value for name, value in values.items() if is_plain(value)}


def _set_plain_state(callback: Any, state: dict[str, Any], placed: dict[int, Any]) -> None:
    if getattr(callback, "monitor_op", True) is None and "monitor_op" not in state:
        # A function, which is not saved. Keras 3 sets it, once, at the end of an epoch, and then
        # changes the sign of `min_delta`, which is saved.
        internals.KERAS_3_SET_MONITOR_OP.of(callback)()
    _set(((name, Attribute(callback, name), True) for name in state), state, placed)


def _set(cells: Iterable[tuple[str, Any, bool]], state: dict[str, Any], placed: Any) -> None:
    """Restores what stands in cells, as those of `cells_of`; see `_restored`."""
    for name, cell, is_assigned in cells:
        if name in state:
            own = content_of(cell)
            restored = _restored(own, state[name], placed)
            if restored is own:
                continue
            if is_assigned:
                cell.cell_contents = restored
            elif _is_place_for(restored, own):
                own[...] = restored  # `run_fn` holds it, too


def _restored(own: Any, value: Any, placed: dict[int, Any]) -> Any:
    """Returns a value, as far as possible in the generator or the containers that stand there.

    Others may hold these too: a `run_fn` after `fit`, or a second attribute. After
    `self.all = {"loss": []}` and `self.losses = self.all["loss"]`, both still are the same list.

    Args:
        own: what stands there, which gets the values.
        value: what was saved, of some generators their state.
        placed: `id` of a saved container, and of the one that has its values → the latter; gets
            more. After `self.last = self.best = []`, two saved ones must not share the one here.
    """
    if is_generator(own) and isinstance(value, (type(own), *_STATES)):
        # A state alone is one of TensorFlow's, or comes from a checkpoint of an earlier version.
        set_state_of(own, state_of(value) if is_generator(value) else value)
        return own
    if not isinstance(value, _CONTAINERS):
        return value
    if id(value) not in placed:
        target: Any = own if type(own) is type(value) and id(own) not in placed else value
        placed[id(value)] = placed[id(target)] = target
        if isinstance(value, dict):
            new: Any = {
                key: _restored(target.get(key), part, placed) for key, part in value.items()
            }
        elif isinstance(value, set):
            new = set(value)
        else:
            pairs = itertools.zip_longest(list(target)[: len(value)], value)
            new = [_restored(there, part, placed) for there, part in pairs]
        target.clear()
        (target.update if isinstance(target, (dict, set)) else target.extend)(new)
    return placed[id(value)]


def _of_classes(callback: Any) -> dict[str, Any]:
    """Returns the containers and generators that the user's classes of a callback have."""
    return {
        name: value
        for kind in reversed(classes_of_user(type(callback)))
        for name, value in vars(kind).items()
        if _changes_in_place(value) and not name.startswith("__")
    }


def _changes_in_place(value: Any) -> bool:
    return isinstance(value, _CONTAINERS) or is_generator(value)


def _is_large(value: Any) -> bool:
    """Returns whether a container has so many members that they are data, unless it grows."""
    is_one = isinstance(value, _CONTAINERS)
    return is_one and len([*itertools.islice(_leaves(value), _MANY_MEMBERS)]) == _MANY_MEMBERS


def _is_place_for(array: Any, own: Any) -> bool:
    if not (isinstance(array, np.ndarray) and isinstance(own, np.ndarray) and own.flags.writeable):
        return False
    return (array.shape, array.dtype) == (own.shape, own.dtype)


def _leaves(value: Any) -> Iterator[Any]:
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, (list, tuple, dict, set, frozenset, collections.deque)):
            yield part
        elif id(part) not in seen:  # a tree may hold its parents
            seen.add(id(part))
            waiting += list(part.values() if isinstance(part, dict) else part)


def _holds_path(value: Any) -> bool:
    return any(isinstance(leaf, str) and "/" in leaf for leaf in _leaves(value))


def _text(leaf: Any) -> str:
    with contextlib.suppress(Exception):  # of a user's class that is derived from one of these
        return repr(leaf) if isinstance(leaf, _COMPARED) else ""
    return ""


def _arrays(value: Any) -> Iterator[np.ndarray]:
    return (leaf for leaf in _leaves(value) if isinstance(leaf, np.ndarray))


def _bytes_of(arrays: Iterable[np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays)
