"""Attributes of a model that steps change and no checkpoint has, for a warning.

Of a model's attributes a checkpoint has variables, numbers, and texts without a slash. A list of
earlier images, or a generator of NumPy, starts anew in a resumed fit. Whether steps change such
data is seen by two looks, after the first step and at the end of the epoch. A look has to be
cheap, because the data may be a replay buffer of gigabytes, and it must never end a training. So
it takes the size of each container, its first and last members, and some values of each array:
what it takes for unchanged may have changed, which then nobody is warned of.
"""

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.texts import listed
from generic_trainer.training._plain import pickled
from generic_trainer.training._walk import attributes_in, classes_of_user
from generic_trainer.training.resume._randomness import is_generator, state_of
from generic_trainer.training.resume._state import (
    SET_BY_KERAS,
    is_restored,
    names_of_user,
    parts_with_metrics,
)

_ENDS = 100  # members of a container, at its start and at its end
_VALUES = 1000  # of an array
_CHARACTERS = 10_000  # of a text
_DEPTH = 4

_logger = logging.getLogger(__name__)


class UnsavedAttributes:
    """Lists, dicts, arrays, paths and generators that the user's methods name.

    Python code of steps that do not run eagerly runs once, while TensorFlow traces it. What a
    `tf.py_function` of them changes is not seen.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before: dict[str, Any] = {}

    def begin(self) -> None:
        """Looks at them after the first step, which may make them."""
        is_eager = self._model.run_eagerly or tf.config.functions_run_eagerly()
        self._before = self._look() if is_eager else {}

    def log(self) -> None:
        """Logs those that have changed since, which will start anew in a resumed fit."""
        after = self._look() if self._before else {}
        changed = [path for path, seen in self._before.items() if after.get(path, seen) != seen]
        if changed:
            _logger.warning(
                "If this fit is resumed, these attributes of the model start anew, because of its "
                "attributes only variables, numbers and texts without a slash are saved: %s. Use a "
                "tf.Variable for them.",
                listed(changed),
            )

    def _look(self) -> dict[str, Any]:
        """Returns path → what is seen of the value."""
        seen = {}
        with contextlib.suppress(Exception):  # another thread may change them meanwhile
            for path, part in parts_with_metrics(self._model, {}):
                kind: Any = type(part)
                names = names_of_user(kind) if classes_of_user(kind) else ()
                for name, value in attributes_in(part).items():
                    if name in names and name not in SET_BY_KERAS and not is_restored(value):
                        with contextlib.suppress(Exception):
                            if (looked := _seen(value, _DEPTH)) is not None:
                                seen[f"{path}.{name}"[1:]] = looked
        return seen


def _seen(value: Any, depth: int) -> Any:
    """Returns something that differs if a value does; None for what is not looked at."""
    if isinstance(value, tf.Tensor):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        step = max(1, value.size // _VALUES)
        return value.shape, value.flat[::step].tobytes()
    if isinstance(value, str | bytes):
        return len(value), value[:_CHARACTERS], value[-_CHARACTERS:]
    if is_generator(value) and not isinstance(value, tf.random.Generator):
        return pickled(state_of(value))
    if isinstance(value, Mapping):  # which may be that of a file
        members = [*itertools.islice(value.items(), _ENDS)]
    elif isinstance(value, list | tuple | deque):
        members = [*value]
    else:
        return len(value) if isinstance(value, set | frozenset) else None
    if not depth:
        return len(value)
    ends = [*members[:_ENDS], *members[-_ENDS:]]
    # Numbers are themselves, and objects of which nothing is known are known by their places.
    seen = [m if type(m) in (bool, int, float) else _seen(m, depth - 1) for m in ends]
    return len(value), [id(m) if s is None else s for m, s in zip(ends, seen, strict=True)]
