"""Random state of all generators that a training draws from, and state that no checkpoint has.

Where a generator keeps its state decides how a checkpoint gets it::

    generator                                 its state                  in a checkpoint
    random, numpy.random                      in the module              random_state
    TensorFlow's global generator             a variable, made late      random_state
    seeds of TensorFlow's single operations   a counter of the process   random_state
    keras.random without a seed               a variable, made late      random_state
    Keras 3's Dropout, tf.random.Generator    a variable of the layer    variables_of
    Keras 2's Dropout, tf.random.uniform      hidden in a kernel         nowhere

Nothing can save the last kind, and a user's counter in a global `tf.Variable` is in no object that
a checkpoint knows. Such a fit resumes with other numbers, and nothing fails. So `Unsaved` compares
the process before and after the first step. If the step has traced `tf.random.uniform` in
`augment/noise`, and has raised the variable `seen` from 0 to 1, the log names `augment/noise` and
`seen` while the first run can still be mended, and not only after it was killed.
"""

import contextlib
import gc
import logging
import random
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import is_chief
from generic_trainer._core.keras import is_keras_3
from generic_trainer.training._walk import walk
from generic_trainer.training.distributed import eager_mode

_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, tf.random.Generator)
_GLOBAL = "tf2_rng_global_state"
_KERAS = "keras_seeds"
# The generators of the modules `random` and `numpy.random`, in a state of all; Determined's names.
OF_PROCESS = ("random_rng_state", "np_rng_state")
_MOST_COMPARED = 1000  # values of a variable
_MOST_EXPORTED = 100_000  # entries of a table, all of which are copied for it
# Lookup tables that a training may change.
TABLES = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)

_logger = logging.getLogger(__name__)


def is_generator(thing: Any) -> bool:
    """Returns whether something is a generator of Python's, NumPy's or TensorFlow's.

    One that draws from the operating system has no state.
    """
    return isinstance(thing, _GENERATORS) and not isinstance(thing, random.SystemRandom)


def state_of(generator: Any) -> Any:
    """Returns the state of a generator, or of the module `random` or `numpy.random`."""
    if hasattr(generator, "getstate"):
        return generator.getstate()
    if hasattr(generator, "get_state"):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    with eager_mode():  # code for TensorFlow 1 may have disabled it
        return generator.state.numpy()


def set_state_of(generator: Any, state: Any) -> None:
    """Sets what `state_of` has returned."""
    if hasattr(generator, "setstate"):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        with eager_mode():
            generator.state.assign(state)


def random_state(model: Any = None) -> dict[str, Any]:
    """Returns the state of the generators that all trainings of this process share.

    It holds numbers, texts, arrays, and tuples, lists and dicts of them; None for a generator that
    there is not.

    Args:
        model: decides which Keras; None for that of `tf.keras`.
    """
    return {name: generator and state_of(generator) for name, generator in _shared(model).items()}


def set_random_state(model: Any, state: Mapping[str, Any], *, in_all_workers: bool = False) -> None:
    """Sets the state that `random_state` has returned, in the chief, whose state it is.

    Args:
        model: see `random_state`.
        state: missing names change nothing.
        in_all_workers: whether all workers have had the same.
    """
    if not (in_all_workers or is_chief()):
        return
    # What the other run had is made where it is missing. That draws from Python's generator,
    # and so comes before any state is set.
    if state.get(_GLOBAL) is not None:
        tf.random.get_global_generator()
    if state.get(_KERAS) is not None and is_keras_3(model):
        sys.modules["keras"].random.uniform(())  # its first draw makes it
    for name, generator in _shared(model).items():
        if generator is not None and state.get(name) is not None:
            set_state_of(generator, state[name])


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """Undoes draws within the context from Python's and NumPy's generators.

    Training data that Python code makes are read again after a restart, without the validations in
    between: these must not change what the data draw.
    """
    before = [(generator, state_of(generator)) for generator in (random, np.random)]
    try:
        yield
    finally:
        for generator, state in before:
            set_state_of(generator, state)


def _shared(model: Any) -> dict[str, Any]:
    """Returns name → generator, or None, of those that all models share.

    The names of the first three are Determined's.
    """
    if is_keras_3(model):
        of_keras = internals.KERAS_3_GLOBAL_ATTRIBUTE.get()("global_seed_generator")
    else:
        of_keras = getattr(internals.KERAS_2_SEEDS.get(), "generator", None)
    return {
        **dict(zip(OF_PROCESS, (random, np.random), strict=True)),
        _GLOBAL: internals.TF_GLOBAL_GENERATOR.get(),
        "tf_op_seeds": getattr(
            internals.TF_EAGER_CONTEXT.get()(), internals.TF_OP_SEEDS.name, None
        ),
        _KERAS: of_keras,
    }


def shared_variables(model: Any) -> list[tf.Variable]:
    """Returns the variables of the generators that all models share."""
    parts = walk([*_shared(model).values()])
    return [part for _, part in parts if isinstance(part, tf.Variable)]


class Unsaved:
    """Reports the state that the first step of a fit changes and no checkpoint has."""

    def __init__(self) -> None:
        """Looks at the variables and functions of this process before the step."""
        self._logged: set[tuple[str, int]] = set()  # messages and `id`s of variables
        self._functions = set(internals.TF_EAGER_CONTEXT.get()().list_function_names())
        self._before = {
            id(variable): (weakref.ref(variable), _sample(variable)) for variable in _alive()
        }

    def log(self, saved: Iterable[Any], of_data: Sequence[tf.Tensor]) -> None:
        """Logs after the step what will start anew in a resumed fit.

        Args:
            saved: the variables that a checkpoint has. Those that they or other objects among them
                have as attributes count as saved, too.
            of_data: the handles of variables and tables that functions of the data use.
        """
        context = internals.TF_EAGER_CONTEXT.get()()
        traced = set(context.list_function_names()) - self._functions
        nodes = (node for name in traced for node in context.get_function_def(name).node_def)
        # These are `tf.random.uniform` and its like, also in Keras 2's `Dropout`.
        places = _places_of_draws(nodes)
        if places:
            _logger.warning(
                "If this fit is resumed, it draws other random numbers than it would have in %s: "
                "there it draws with stateful ops of TensorFlow, whose state cannot be saved. For "
                "layers of Keras 2, call tf_keras.backend.experimental.enable_tf_random_generator()"
                " before you make them; elsewhere, draw with a tf.random.Generator.",
                ", ".join(places),
            )
        self._log(_alive(), saved, of_data)

    def log_of_epoch(self, saved: Iterable[Any], of_data: Sequence[tf.Tensor]) -> None:
        """Logs after an epoch the variables that only its end changes, as callbacks do.

        Variables that were made since may serve one evaluation, and are left out.

        Args:
            saved: see `log`.
            of_data: likewise.
        """
        alive = [variable for held, _ in self._before.values() if (variable := held()) is not None]
        self._log(alive, saved, of_data)

    def _log(self, alive: list[Any], saved: Iterable[Any], of_data: Sequence[tf.Tensor]) -> None:
        # Data are read ahead of the steps, and some of them once more by a resumed fit.
        ids = {*map(id, of_data)}
        self._warn(
            "If this fit is resumed, it reads other values than it would have, because functions "
            "of its data use these variables, which change: %s. Draw there with stateless ops, "
            "such as tf.random.stateless_uniform, from seeds of tf.data.Dataset.counter, and "
            "change data in the steps of the model.",
            [variable for variable in alive if id(_handle(variable)) in ids],
        )
        unsaved = _others(alive, saved)
        queues = [variable for variable in unsaved if isinstance(variable, tf.queue.QueueBase)]
        self._warn(
            "If this fit is resumed, these variables start anew, because they are attributes "
            "neither of the model nor of a callback: %s. Assign them, or the object that has them, "
            "to an attribute of the model.",
            [variable for variable in unsaved if not isinstance(variable, tf.queue.QueueBase)],
        )
        self._warn(
            "If this fit is resumed, these queues start anew, because nothing can save them: %s. "
            "Keep their elements in variables of the model.",
            queues,
        )

    def _warn(self, message: str, variables: list[Any]) -> None:
        """Logs a message with the names of those that have changed, each once."""
        changed = [
            variable
            for variable in variables
            if (message, id(variable)) not in self._logged and self._has_changed(variable)
        ]
        if changed:
            self._logged |= {(message, id(variable)) for variable in changed}
            _logger.warning(message, ", ".join(sorted({*map(_name, changed)})))

    def _has_changed(self, variable: Any) -> bool:
        """Whether a variable has other values than before the step, or has got its first ones."""
        after = _sample(variable)
        known: Any = self._before.get(id(variable), (lambda: None, None))
        held, before = known
        is_known = held() is variable and before is not None
        # NaN that stays is no change. The dtypes of ml_dtypes, such as bfloat16, are of kind "V".
        return after is not None and not (
            is_known and np.array_equal(before, after, equal_nan=before.dtype.kind in "fcV")
        )


def _alive() -> list[Any]:
    """Returns the variables, tables and queues of this process."""
    # A set of classes is the fastest question that can be asked of a million objects.
    kinds = set()
    waiting = [tf.Variable, *TABLES, tf.queue.QueueBase]
    while waiting:
        kind = waiting.pop()
        kinds.add(kind)
        waiting += type.__subclasses__(kind)
    return [
        variable
        for variable in [thing for thing in gc.get_objects() if type(thing) in kinds]
        # A variable of several replicas, or with another dtype, wraps further variables.
        if not _wrapped(variable)
        and type(variable).__name__ != "_UnreadVariable"  # returned by `assign` within functions
    ]


def _others(alive: list[Any], saved: Iterable[Any]) -> list[Any]:
    # By identity, as `==` of variables compares their values.
    known: dict[int, Any] = {}
    waiting = [*saved]
    while waiting:  # under mixed_float16 a variable wraps one of replicas, which wraps theirs
        if id(part := waiting.pop()) not in known:
            known[id(part)] = part
            waiting += _wrapped(part)
    return [variable for variable in alive if id(variable) not in known]


def _name(variable: Any) -> str:
    if isinstance(variable, tf.Variable):
        return str(variable.name)
    return f"a {type(variable).__name__}"  # names of tables and queues say little


def _handle(variable: Any) -> Any:
    with contextlib.suppress(Exception):  # as in `_sample`
        return variable.resource_handle if isinstance(variable, TABLES) else variable.handle
    return None


def _wrapped(thing: Any) -> list[Any]:
    """Returns the variables that another one, or any object, has as its attributes."""
    held = [
        value if isinstance(value, (tuple, list)) else (value,)
        for value in getattr(thing, "__dict__", {}).values()
    ]
    return [part for parts in held for part in parts if issubclass(type(part), tf.Variable)]


def _sample(variable: Any) -> np.ndarray | None:
    """Returns the first values of a variable; None if it has none yet, or is one of a graph.

    Of a table they follow its size, and of a queue or a large table there is the size alone.
    """
    with contextlib.suppress(Exception):  # not even a strange variable may fail a run
        if isinstance(variable, tf.queue.QueueBase):
            return np.asarray(variable.size())
        if isinstance(variable, TABLES):
            if (size := int(variable.size())) > _MOST_EXPORTED:
                return np.asarray(size)
            parts = [tf.reshape(part, [-1])[:_MOST_COMPARED].numpy() for part in variable.export()]
            return np.concatenate([[size], *parts], dtype=object)
        size = variable.shape.num_elements()
        if size is None or size > _MOST_COMPARED:
            variable = tf.reshape(variable, [-1])[:_MOST_COMPARED]
        return np.ravel(variable.numpy())
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
    return _places_of_draws(op.node_def for op in graph.get_operations() if op.name not in initial)


def _places_of_draws(nodes: Iterable[Any]) -> list[str]:
    find = internals.TF_FIND_OP.get()
    places = set()
    for node in nodes:
        op = find(node.op)
        # Ops that draw have the attribute; those that are stateful too hide how far they are.
        if op is None or not op.is_stateful or "seed2" not in {attr.name for attr in op.attr}:
            continue
        if "dropout" in node.attr and not node.attr["dropout"].f:
            continue  # an LSTM or a GRU of Keras 2, which draws nothing
        places.add(node.name.rpartition("/")[0].removesuffix("/random_uniform") or node.name)
    return sorted(places)
