"""State that a training changes and that no checkpoint has: variables, and hidden random state."""

import contextlib
import functools
import gc
import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals

_MOST_COMPARED = 1000

_logger = logging.getLogger(__name__)


class Unsaved:
    """Reports the state that the first step of a fit changes and no checkpoint has."""

    def __init__(self) -> None:
        """Looks at the variables and functions of this process before the step."""
        self._functions = set(internals.TF_EAGER_CONTEXT.get()().list_function_names())
        self._before = {id(each): (each, _sample(each)) for each in _others()}

    def log(self, saved: Iterable[Any]) -> None:
        """Logs after the step what will start anew in a resumed fit.

        Args:
            saved: the variables that a checkpoint has.
        """
        context = internals.TF_EAGER_CONTEXT.get()()
        traced = set(context.list_function_names()) - self._functions
        nodes = (node for name in traced for node in context.get_function_def(name).node_def)
        # These are `tf.random.uniform` and its like, also in Keras 2's `Dropout`.
        places = _places_of_draws((node.name, node.op) for node in nodes)
        if places:
            _logger.warning(
                "If this fit is resumed, it draws other random numbers than it would have in %s: "
                "there it draws with stateful ops of TensorFlow, whose state cannot be saved. For "
                "layers of Keras 2, call tf_keras.backend.experimental.enable_tf_random_generator()"
                " before you make them; elsewhere, draw with a tf.random.Generator.",
                ", ".join(places),
            )
        names = set()
        for variable in _others(saved):
            _, before = self._before.get(id(variable), (None, None))
            after = _sample(variable)
            if after is not None and (before is None or not np.array_equal(before, after)):
                names.add(variable.name)
        if names:
            _logger.warning(
                "If this fit is resumed, these variables start anew, because they are attributes "
                "neither of the model nor of a callback: %s. Assign them, or the object that has "
                "them, to an attribute of the model.",
                ", ".join(sorted(names)),
            )


def _others(saved: Iterable[Any] = ()) -> list[Any]:
    # A variable of several replicas, or with another dtype, wraps further variables.
    ids = {id(part) for each in saved for part in (each, *_wrapped(each))}
    # Asked once for each class: the answer takes long, and there are a million objects.
    is_variable: Any = functools.cache(lambda kind: issubclass(kind, tf.Variable))
    alive = [each for each in gc.get_objects() if is_variable(type(each))]
    return [
        each
        for each in alive
        if id(each) not in ids
        and not _wrapped(each)
        and type(each).__name__ != "_UnreadVariable"  # returned by `assign` within functions
    ]


def _wrapped(variable: Any) -> list[Any]:
    held = [
        each if isinstance(each, (tuple, list)) else (each,)
        for each in getattr(variable, "__dict__", {}).values()
    ]
    return [part for parts in held for part in parts if issubclass(type(part), tf.Variable)]


def _sample(variable: Any) -> np.ndarray | None:
    """Returns the first values of a variable; None if it has none yet, or is one of a graph."""
    with contextlib.suppress(Exception):  # not even a strange variable may fail a run
        values: np.ndarray = tf.reshape(variable, [-1])[:_MOST_COMPARED].numpy()
        return values
    return None


def stateful_draws_of_graph(graph: tf.Graph) -> list[str]:
    """Returns where a graph of TensorFlow 1 draws from operations that hide their state.

    Those that draw initial values only are left out. The places are names of scopes, such as
    "sequential/dropout".
    """
    with graph.as_default():
        variables = tf.compat.v1.global_variables() + tf.compat.v1.local_variables()
    waiting = [variable.initializer for variable in variables]
    initial: set[str] = set()
    while waiting:
        operation = waiting.pop()
        if operation.name not in initial:
            initial.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs]
    operations = (each for each in graph.get_operations() if each.name not in initial)
    return _places_of_draws((each.name, each.type) for each in operations)


def _places_of_draws(operations: Iterable[tuple[str, str]]) -> list[str]:
    find, found = internals.TF_FIND_OP.get(), set()
    for name, kind in operations:
        op = find(kind)
        if op is not None and op.is_stateful and "seed2" in {each.name for each in op.attr}:
            found.add(name.rpartition("/")[0].removesuffix("/random_uniform") or name)
    return sorted(found)
