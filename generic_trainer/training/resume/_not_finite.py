"""Weights of a `fit` that stop being finite: noticed in time, traced to rows by the next attempt.

1. Looking costs at most 1 % of the time. The loss in Keras's logs is a mean since the epoch began,
   so a late look misses nothing. A loss alone is no proof, because scaled losses of mixed precision
   overflow by design: the weights decide. They are also looked at before each checkpoint.
2. By then the state before the step is gone. The attempt ends as if its worker were lost. The next
   one resumes exactly, from a good checkpoint, and keeps a copy of the state before each step,
   until it has passed the one that was noticed. `_culprits` searches the batch of a failing step.
"""

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import gfile, read_whole, write_whole
from generic_trainer._core.progress import note
from generic_trainer._core.texts import listed
from generic_trainer.errors import TrainingError, WorkerLostError
from generic_trainer.training.distributed import DataParallelStrategy, rank
from generic_trainer.training.resume._callback_state import numbers_of
from generic_trainer.training.resume._culprits import find_culprits, noted_layers, without
from generic_trainer.training.resume._position import Position
from generic_trainer.training.resume._randomness import random_state, set_random_state
from generic_trainer.training.resume._state import WEIGHTS, ModelState

ON_NAN = ("error", "skip", "ignore")
_SHARE = 0.01  # of the time, for looking
_FILE = "not-finite"  # beside the checkpoints: the step at which it was noticed
_TOO_LARGE = 1e18  # for a weight: its square is almost infinite
_EXPLODED, _GROWTH = 1e6, 1e3  # no row is to blame if a weight is so large, or has grown so much
_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

_logger = logging.getLogger(__name__)


class NanWatch:
    """Looks for weights that are not finite; see the module.

    Attributes:
        waits: whether another callback may restore weights before the fit ends.
    """

    waits = False
    _at_start: Set[str] = frozenset()  # weights that were not finite then

    def __init__(self, on_nan: str) -> None:
        """Takes the argument of `resume_callbacks`."""
        self._on_nan = on_nan
        self._due_s = 0.0
        self._until = 0.0  # the step up to which state is copied
        self._sizes: list[float] = []  # the largest weight before each of the last copied steps
        self._is_logged = False
        self._iterator: Any = None
        self._looked_at: list[Any] = []  # the variables of `_are_small`
        self._are_small: Callable[[], Any] = lambda: True

    def begin(self, model: Any, state: ModelState, directory: str) -> None:
        """Begins a fit; the directory of its checkpoints has the step of an earlier alarm."""
        self._model = model
        self._state = state
        self._path = os.path.join(directory, _FILE)
        if self._on_nan != "ignore":
            self._at_start = self._not_finite() if model.built else frozenset()
            if gfile().exists(self._path):  # rows may have to be left out later, too
                steps = read_whole(self._path)  # may be empty after a loss of power
                steps = steps if steps.isdigit() else b"0"
                self._until = math.inf if self._on_nan == "skip" else int(steps)

    def look(self, logs: Any, position: Position, *, at_weights: bool = False) -> bool:
        """Looks at the loss, if the last look was long enough ago, or at the weights.

        Returns:
            Whether the weights may be saved.

        Raises:
            WorkerLostError: they are not finite; the next attempt finds out why.
            TrainingError: they are not finite, and their rows cannot be found.
        """
        start_s = time.monotonic()
        if self._on_nan == "ignore" or not (at_weights or start_s >= self._due_s):
            return True
        loss = logs.get("loss") if isinstance(logs, Mapping) else None
        is_odd = not _is_finite(loss)
        names = self._not_finite() if (at_weights or is_odd) and self._is_suspicious() else set()
        if names and (position.done or not self.waits):
            self._give_up(listed(sorted(names)), position.steps)
        if (names or (is_odd and loss is not None)) and not self._is_logged:
            self._is_logged = True
            why = "a callback may restore weights" if names else "all weights are finite"
            _logger.warning("Loss is %s at step %d; %s", np.asarray(loss), position.steps, why)
        end_s = time.monotonic()
        self._due_s = end_s + (end_s - start_s) / _SHARE
        return not names

    def _give_up(self, names: str, steps: int) -> None:
        message = (
            f"After {steps} steps, weights are not finite, or beyond {_TOO_LARGE:g}: {names}. They "
            "are not saved. "
        )
        if not self._can_search or steps <= self._until:
            raise TrainingError(
                f"{message}Noticed by worker {rank()}. Look for values in the data that are not "
                "finite, lower the learning rate, or clip gradients. Rows can be named only if one "
                "worker trains one replica, with steps_per_execution=1, and not of the first step "
                "of a model that runs eagerly."
            )
        write_whole(self._path, str(steps))
        raise WorkerLostError(
            f"{message}The next attempt resumes from the last checkpoint, and names the rows that "
            "are to blame."
        )

    @property
    def _can_search(self) -> bool:
        return (
            isinstance(self._iterator, tf.data.Iterator)
            and not isinstance(self._model.distribute_strategy, DataParallelStrategy)
            and int(tf.convert_to_tensor(self._model.steps_per_execution)) == 1
        )

    def step(self, function: Callable[[Any], Any], iterator: Any, position: Position) -> Any:
        """Returns the logs of Keras's function for a step from a position.

        Raises:
            TrainingError: it makes weights that are not finite, as an earlier attempt has noticed.
        """
        self._iterator = iterator
        steps = position.steps
        # The state before the first step is unknown if the model runs eagerly.
        is_known = steps or not self._model.run_eagerly
        if steps >= self._until or not is_known or not self._can_search:
            return function(iterator)
        batch = tf.nest.map_structure(
            lambda part: None if isinstance(part, tf.experimental.Optional) else part,
            iterator.get_next(),
        )
        if not self._sizes:
            _logger.warning("Looking for the rows that make the weights not finite")
            if not steps:  # makes the variables that a step makes
                tf.function(self._model.train_step).get_concrete_function(batch)
                self._state.find_variables()
        self._sizes = [*self._sizes[-20:], _largest(self._model)]
        variables = [
            variable
            for variable in self._state.variables.values()
            if isinstance(variable, tf.Variable)
        ]
        with tf.device("CPU:0"):  # a second copy may be too much for the memory of a GPU
            values = [tf.identity(variable.read_value()) for variable in variables]
        generators = random_state(self._model)
        known = self._not_finite()
        where = (
            f"batch {position.batches + 1} of epoch {len(position.lengths) + 1} (step {steps + 1})"
        )
        if known and not self.waits:
            raise TrainingError(
                f"Weights are not finite before {where}, but were after the step before it: "
                f"{listed(sorted(known))}. Look at what callbacks do to the weights."
            )

        def restore() -> None:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            set_random_state(self._model, generators)

        def fails(batch: Any) -> bool:
            restore()
            self._logs = function(iter(tf.data.Dataset.from_tensors(batch)))
            return bool(self._not_finite() - known)

        if not fails(batch):
            return self._logs
        first, last = self._sizes[0], self._sizes[-1]
        if last <= min(_EXPLODED, _GROWTH * max(1.0, min(self._sizes))):
            rows, text = find_culprits(fails, batch)
        else:
            rows = []
            text = (
                "no single row is to blame: the largest weight has grown from "
                f"{first:.3g} to {last:.3g} in {len(self._sizes) - 1} steps."
            )
        if self._on_nan == "skip" and rows and not fails(without(batch, rows)):
            _logger.warning("Left out of %s: %s", where, text)
            note(read=f"left out of {where}: rows {listed(rows)}")
            return self._logs
        restore()
        text += self._first_layer(batch)
        text += " Lower the learning rate, clip gradients, or correct " + (
            "these values; on_nan='skip' leaves such rows out." if rows else "the loss."
        )
        raise TrainingError(f"Weights become not finite in {where}: {text}")

    def _first_layer(self, batch: Any) -> str:
        # A step that works only as a graph leaves the question open.
        with noted_layers(self._model) as layers, contextlib.suppress(Exception):
            self._logs = self._model.train_step(batch)
        if layers:
            return f" The output of the layer {layers[0]!r} is the first that is not finite."
        if not _is_finite(self._logs.get("loss")):
            return " The loss is not finite, the outputs of layers are."
        return " The loss is finite; the gradient is not, or is too large."

    def _is_suspicious(self) -> bool:
        """Returns whether `_not_finite` has to look, by one call of a compiled function.

        Hundreds of variables take as many calls of TensorFlow otherwise, at each checkpoint.
        """
        named = [*_trained(self._model), *_untrained(self._model, self._state)]
        variables = [variable for _, variable in named]
        # By identity, as `==` of variables compares their values.
        if [*map(id, variables)] != [*map(id, self._looked_at)]:
            self._looked_at = variables
            function = tf.function(lambda: _are_small(variables), autograph=False)
            self._are_small = function.get_concrete_function()  # calls of it never trace anew
        return not self._are_small()

    def _not_finite(self) -> set[str]:
        """Returns the names of weights that are not finite, and were when the fit began.

        Includes variables of the optimizer that are NaN: it may have accumulated gradients. And
        weights that are not trained and are NaN, such as the moving means of a batch normalization:
        a step that loss scaling leaves out changes them all the same.
        """
        names = set()
        for name, variable in _trained(self._model):
            if not tf.reduce_all(tf.abs(tf.convert_to_tensor(variable)) < _TOO_LARGE):
                names.add(name)
        for name, variable in _untrained(self._model, self._state):
            if tf.reduce_any(tf.math.is_nan(tf.convert_to_tensor(variable))):
                names.add(name)
        return names - self._at_start


def _are_small(variables: list[Any]) -> Any:
    # A sum of squares takes one pass and no copy. It is half of them, in `l2_loss`.
    tensors = [tf.convert_to_tensor(variable) for variable in variables]
    halves = [tf.nn.l2_loss(tf.cast(tensor, tf.float32)) for tensor in tensors]
    return tf.reduce_all([True, *(half < _TOO_LARGE**2 / 2 for half in halves)])


def _trained(model: Any) -> list[tuple[str, Any]]:
    return _named(model.trainable_weights)


def _untrained(model: Any, state: ModelState) -> list[tuple[str, Any]]:
    """Returns weights that are not trained, and variables of the optimizer."""
    variables = state.variables
    # With Keras 2, metrics that are attributes of a model are among its layers.
    metrics = {id(part) for name, part in variables.items() if not name.startswith(WEIGHTS)}
    weights = [weight for weight in model.non_trainable_weights if id(weight) not in metrics]
    of_optimizer = [
        (name, variable)
        for name, variable in variables.items()
        if name.startswith("training/optimizer") and _is_float(variable)
    ]
    return [*_named(weights), *of_optimizer]


def _named(weights: list[Any]) -> list[tuple[str, Any]]:
    return [
        (getattr(weight, "path", weight.name), weight) for weight in weights if _is_float(weight)
    ]


def _is_float(variable: Any) -> bool:
    # The vocabulary of a layer of Keras 2 is among its weights, and has no dtype.
    return tf.as_dtype(getattr(variable, "dtype", tf.string)) in _DTYPES


def _largest(model: Any) -> float:
    values = [tf.convert_to_tensor(weight) for _, weight in _trained(model)]
    sizes = [float(tf.reduce_max(tf.abs(value))) for value in values]
    return max(filter(math.isfinite, sizes), default=0.0)


def _is_finite(loss: Any) -> bool:
    return all(np.isfinite(number).all() for number in numbers_of(loss) or ())
