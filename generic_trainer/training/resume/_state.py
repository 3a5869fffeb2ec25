"""The state of a model in a checkpoint: its variables, its generators, what its layers learned.

1. To take the values of variables copies nothing: TensorFlow copies a variable that changes while
   its value is in use. Files of them are written beside training.
2. Moving statistics and counts of metrics have another value in every replica. A checkpoint of
   TensorFlow has their mean or sum, which is right, but not equal to the last bit to the values
   that training would continue with.
"""

import contextlib
import functools
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from generic_trainer._core.keras import is_keras_3
from generic_trainer._core.scratch import unlike_a_pattern
from generic_trainer._core.values import unpickled_data
from generic_trainer.training._plain import is_plain, pickled, read_state, taken_state
from generic_trainer.training._walk import (
    attributes_in,
    codes_of_user,
    serves_training,
    walk,
)
from generic_trainer.training.distributed import gather, rank, size
from generic_trainer.training.resume._adapted import adapted_state, set_adapted_state
from generic_trainer.training.resume._randomness import TABLES, random_state, set_random_state

# Path of attributes, after the start of its group → a variable of TensorFlow, or a lookup table.
Variables: TypeAlias = dict[str, Any]
# Name in files → value.
Tensors: TypeAlias = dict[str, tf.Tensor]
_KINDS = (tf.Variable, *TABLES)
WEIGHTS = "weights/"
OF_CALLBACKS = "training/callbacks"
TRAINABLE = "trainable"
_PLAIN = {type(None), bool, int, float, str}  # not classes derived from them: no data
_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")  # legacy optimizers of Keras 2 hide them
SET_BY_KERAS = {"built", "stop_training", TRAINABLE}
_NOT_RESTORED = {*SET_BY_KERAS, "name"}
_ENDS = ("keys", "values")  # of the names of a table's tensors
_MULTI_WORKER = tf.distribute.MultiWorkerMirroredStrategy
# Writes values that were taken before into a directory.
Writer: TypeAlias = Callable[[str], None]
# The file of tensors, and the one of all else.
_TENSORS, _VALUES = "tensors", "values"
_MOST_NAMED = 5
_HOLDERS = (Mapping, list, tuple, tf.Module, tf.train.Checkpoint)


def variables_of(model: Any, callbacks: Iterable[Any] = ()) -> Variables:
    """Returns all variables and lookup tables that the training of a model changes.

    The names of those that the model is made of begin with `WEIGHTS`; the others are variables of
    optimizers, metrics and callbacks.
    """
    deferred: dict[str, Any] = {}
    seen: dict[int, Any] = {}
    parts = [(WEIGHTS + path[1:], part) for path, part in walk(model, seen, deferred)]
    roots = {
        ".optimizer": getattr(model, "optimizer", None),
        ".metrics": list(getattr(model, "metrics", ())),
        **deferred,
        ".callbacks": list(callbacks),
    }
    for name, root in roots.items():
        parts += [(f"training/{name[1:]}{path}", part) for path, part in walk(root, seen)]
    return {name: part for name, part in parts if isinstance(part, _KINDS)}


def taken(variables: Mapping[str, Any]) -> Tensors:
    """Returns the present values of variables and tables."""
    values: Tensors = {}
    for name, variable in variables.items():
        if isinstance(variable, TABLES):
            parts = variable.export()
            if isinstance(variable, tf.lookup.experimental.DenseHashTable):
                # These are the table's own buckets, which it changes while a thread writes them.
                parts = [tf.constant(np.array(part)) for part in parts]
            values |= zip((f"{name}/{end}" for end in _ENDS), parts, strict=True)
        else:
            values[name] = _value(variable)
    return values


def write_tensors(path: str, tensors: Tensors) -> None:
    """Writes tensors into files."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=[*tensors],
            shape_and_slices=tf.fill([len(tensors)], ""),
            tensors=[*tensors.values()],
        )


def read_variables(path: str, variables: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Sets variables and tables to their values in files of `write_tensors`.

    Returns:
        The names of variables that the files have not, and of values for no variable.
    """
    reader = tf.train.load_checkpoint(path)
    values = {*reader.get_variable_to_shape_map()}
    missing = set()
    for name, variable in variables.items():
        is_table = isinstance(variable, TABLES)
        names = [f"{name}/{end}" for end in _ENDS] if is_table else [name]
        if not values.issuperset(names):
            missing.add(name)
            continue
        values.difference_update(names)
        if is_table:
            # Also takes the empty buckets of a `DenseHashTable`, which `insert` refuses.
            keys, content = map(reader.get_tensor, names)
            handle = variable.resource_handle
            tf.raw_ops.LookupTableImportV2(table_handle=handle, keys=keys, values=content)
        else:
            variable.assign(reader.get_tensor(name))
    return missing, values


def _value(variable: Any) -> tf.Tensor:
    """Returns the value of a variable; that of the first replica if they have none in common."""
    if (
        isinstance(variable, tf.distribute.DistributedValues)
        and variable.synchronization == tf.VariableSynchronization.ON_READ
        and variable.aggregation == tf.VariableAggregation.NONE
    ):
        variable = variable.values[0]
    return variable.read_value()


def _own_of_replicas(strategy: tf.distribute.Strategy, variables: Variables) -> list[Any]:
    """Returns for each variable whose values differ between replicas those of this process.

    Few models have any.
    """
    kinds = (tf.distribute.MirroredStrategy, _MULTI_WORKER)
    if not isinstance(strategy, kinds) or strategy.num_replicas_in_sync == 1:
        return []
    return [
        strategy.experimental_local_results(variable)
        for variable in variables.values()
        if getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
    ]


def attributes_of(model: Any) -> dict[str, Any]:
    """Returns numbers, texts, None and tuples of them, attributes of a model and its parts.

    The parts are its layers, with `trainable`, its metrics and its optimizers. Texts with a slash
    are not among them: they may be paths, and the run that resumes may have another directory.

    Returns:
        Their paths → them.
    """
    values: dict[str, Any] = {}
    for path, part in _parts_with_attributes(model):
        kind: Any = type(part)
        if hasattr(kind, "trainable_weights") and not serves_training(part):
            values[f"{path}.{TRAINABLE}"] = part.trainable
        hidden = {name: getattr(part, name) for name in _CLIPS if hasattr(part, name)}
        for name, value in {**attributes_in(part), **hidden}.items():
            if not is_restored(value) or name in _NOT_RESTORED:
                continue
            if name == "loss" and hasattr(kind, "compile"):  # `_changes` looks at it
                continue
            if name[0] != "_" or name in names_of_user(kind):
                values[f"{path}.{name}"] = tuple(value) if isinstance(value, tuple) else value
    return values


def _parts_with_attributes(model: Any) -> Iterator[tuple[str, Any]]:
    deferred: dict[str, Any] = {}
    for path, part in parts_with_metrics(model, deferred):
        if not isinstance(part, _KINDS):
            yield path, part
    yield from parts_of_optimizers(deferred)


def parts_with_metrics(model: Any, deferred: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the parts of a model, and then of its metrics, with their paths.

    Args:
        model: of Keras.
        deferred: gets its optimizers and metrics.
    """
    seen: dict[int, Any] = {}
    yield from walk(model, seen, deferred)
    for path, part in deferred.items():
        if not hasattr(type(part), "apply_gradients"):
            yield from ((path + end, inner) for end, inner in walk(part, seen))


def is_restored(value: Any) -> bool:
    """Returns whether `attributes_of` has a value that is an attribute."""
    if isinstance(value, tuple):  # also of a class of Keras 2, but no named one
        return not hasattr(value, "_fields") and all(map(is_restored, value))
    is_plain_value = type(value) in _PLAIN or isinstance(value, (np.number, np.bool_))
    return is_plain_value and not (isinstance(value, str) and "/" in value)


def parts_of_optimizers(deferred: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields optimizers and what they are made of, inner ones and schedules, with their paths.

    Their variables, of which a model may have thousands, are not among them.

    Args:
        deferred: what `walk` has not visited.
    """
    waiting = [item for item in deferred.items() if hasattr(type(item[1]), "apply_gradients")]
    seen: dict[int, Any] = {}
    while waiting:
        path, part = waiting.pop(0)
        if id(part) in seen or not hasattr(part, "__dict__"):
            continue
        seen[id(part)] = part
        yield path, part
        for name, value in vars(part).items():
            kind: Any = type(value)
            is_schedule = callable(value) and hasattr(kind, "get_config")
            if is_schedule or hasattr(kind, "apply_gradients"):
                waiting.append((f"{path}.{name}", value))


@functools.lru_cache(1024)
def names_of_user(kind: type) -> frozenset[str]:
    """Returns the names in the methods of the user's classes, which may be of private attributes.

    All other private attributes are those of Keras.
    """
    return frozenset(itertools.chain(*(code.co_names for code in codes_of_user(kind))))


def set_attributes(model: Any, numbers: Mapping[str, Any]) -> None:
    """Restores results of `attributes_of`; others stay as they are."""
    parts = dict(_parts_with_attributes(model))
    for key, number in numbers.items():  # `trainable` sets those below, which come later
        path, _, name = key.rpartition(".")
        if path in parts and getattr(parts[path], name, None) != number:
            setattr(parts[path], name, number)


class ModelState:
    """What the training of a model changes.

    ::

        state.find_variables()
        write = state.take(tensors, **values)  # a thread may write while training continues
        write(directory)

        state.read_weights(directory)  # in another process, before training makes variables
        state.read()

    Attributes:
        variables: those that `find_variables` has found, by name.
        saved: all values of the checkpoint that `read_weights` has read.
    """

    saved: dict[str, Any]

    def __init__(self, model: Any, others: Sequence[Any] = ()) -> None:
        """Takes a model or layer of Keras, and others whose variables its training changes."""
        self._model, self._others = model, others
        self.variables: Variables = {}
        strategy = getattr(model, "distribute_strategy", None)  # layers have none
        self._strategy = strategy or tf.distribute.get_strategy()

    def find_variables(self) -> None:
        """Finds the variables, before the first `take` and whenever some may have been made."""
        self.variables = variables_of(self._model, self._others)

    def take(self, tensors: Tensors, **values: Any) -> Writer:
        """Returns a writer of the present state; all workers of a cluster call this.

        Args:
            tensors: others to write, by names without a slash.
            values: other plain data to write.
        """
        tensors = {**taken(self.variables), **tensors}
        replicas: list[Any] = [
            [
                [part.numpy() for part in parts]
                for parts in _own_of_replicas(self._strategy, self.variables)
            ]
        ]
        if replicas[0] and isinstance(self._strategy, _MULTI_WORKER):
            replicas = gather(replicas[0])
        values |= {"learned": self._learned, "replicas": replicas}
        write_values = taken_state(_VALUES, {**values, "random": random_state(self._model)})

        def write(directory: str) -> None:
            write_tensors(tensors_in(directory), tensors)
            write_values(directory)

        return write

    def read_weights(self, directory: str, *, all_now: bool = False) -> None:
        """Restores the variables that a model is made of; builds it first if it has not been.

        Args:
            directory: of the checkpoint.
            all_now: whether `read` does not follow, once all variables have been made.

        Raises:
            ValueError: the model has variables that the checkpoint has not; with `all_now`, or
                layers that cannot be built, whose variables only the checkpoint has.
        """
        self._path, self.saved = tensors_in(directory), read_state(directory, _VALUES)
        self._adapted, build_config, of_layers = unpickled_data(self.saved["learned"])
        if not self._model.built and build_config:
            # Else the first step does: Keras 3 warns if it cannot. Keras 2 raises, of a model that
            # adds losses in `call`, for example.
            with warnings.catch_warnings(), contextlib.suppress(Exception):
                warnings.simplefilter("ignore")
                self._model.build_from_config(build_config)
        for path, layer in [*_unbuilt(self._model)] if all_now else ():  # those above others first
            if not layer.built and of_layers.get(path):  # one above may have built it
                layer.build_from_config(of_layers[path])
        self.find_variables()
        names = filter(lambda name: name.startswith(WEIGHTS), self.variables)
        missing, others = self._read_variables({name: self.variables[name] for name in names})
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        unbuilt = tuple(WEIGHTS + f"{path}."[1:] for path, _ in _unbuilt(self._model))
        if all_now and (lacking := sorted(name for name in others if name.startswith(unbuilt))):
            named = ", ".join(name.removeprefix(WEIGHTS) for name in lacking[:_MOST_NAMED])
            raise ValueError(
                f"the model has not made {named} yet, and its layers do "
                "not know from what: call it on a batch before its weights are restored"
            )

    def read(self) -> None:
        """Restores the state, when all variables have been made.

        Raises:
            ValueError: the model has other variables than were saved.
        """
        self.find_variables()
        missing, others = self._read_variables(self.variables)
        if differing := sorted(missing | {name for name in others if "/" in name}):
            raise ValueError(
                f"only one of them has {', '.join(differing[:_MOST_NAMED])} (a variable that a "
                "validation or a callback makes has to be made before the first step)"
            )
        set_random_state(self._model, self.saved["random"])

    def _read_variables(self, variables: Variables) -> tuple[set[str], set[str]]:
        with unlike_a_pattern(os.path.dirname(self._path)) as directory:
            names = read_variables(tensors_in(directory), variables)
        own = _own_of_replicas(self._strategy, variables)
        spans_workers = isinstance(self._strategy, _MULTI_WORKER)
        number, workers = (rank(), size()) if spans_workers else (0, 1)
        saved = self.saved["replicas"]
        # The first of those that were saved, and only for as many replicas as there were then.
        arrays = saved[number][: len(own)] if len(saved) == workers else []
        if [*map(len, arrays)] == [*map(len, own)]:
            flat = zip(tf.nest.flatten(own), tf.nest.flatten(arrays), strict=True)
            for variable, array in flat:
                variable.assign(array)
        set_adapted_state(self._model, self._adapted)
        return names

    @functools.cached_property
    def _learned(self) -> bytes:
        """What no step changes, so that it is pickled once."""
        layers = _layers_of_keras_3(self._model)
        configs = {path: layer.get_build_config() for path, layer in layers}
        configs = {path: config for path, config in configs.items() if is_plain(config)}
        config = self._model.get_build_config()
        # Keras 2 would build from floats what was called with others: each `Sequential` below casts
        # its inputs from then on to what it was built with, so that large whole numbers merge.
        called_with = tf.nest.flatten(getattr(self._model, "save_spec", tuple)() or ())
        are_specs = all(isinstance(each, tf.TensorSpec) for each in called_with)  # or ragged, None
        if not are_specs or any(each.dtype != tf.float32 for each in called_with):
            config = None
        return pickled((adapted_state(self._model), config, configs))


def topmost_layers(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yields models and layers of Keras 3 that are in no other of them, with their paths.

    Args:
        holder: one of them, a list or dict, or a `tf.Module`; iterators and optimizers have none.
    """
    if not isinstance(holder, _HOLDERS) and not hasattr(type(holder), "get_build_config"):
        return
    paths: list[str] = []
    for path, layer in _layers_of_keras_3(holder):
        if not any(path.startswith(f"{above}.") for above in paths):
            paths.append(path)
            yield path, layer


def parts_beside_layers(holder: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yields the variables of metrics and generators of Keras 3 that are in no layer.

    Args:
        holder: as for `topmost_layers`, or one of these parts.

    Yields:
        The path of the part, and its variables.
    """
    keras: Any = sys.modules.get("keras")
    if not is_keras_3(holder) and not isinstance(holder, _HOLDERS):
        return
    above = [path for path, _ in topmost_layers(holder)]
    deferred: dict[str, Any] = {}
    for path, part in [*walk(holder, deferred=deferred), *deferred.items()]:
        if not is_keras_3(part) or any(f"{path}.".startswith(f"{each}.") for each in above):
            continue
        if isinstance(part, keras.metrics.Metric):
            yield path, list(part.variables)
        elif isinstance(part, keras.random.SeedGenerator):
            yield path, [part.state]


def _layers_of_keras_3(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the model and the layers below it, with their paths."""
    for path, part in walk(model, deferred={}):
        if hasattr(type(part), "get_build_config") and is_keras_3(part):
            yield path, part


def _unbuilt(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the layers that will make variables of their own when they are called.

    Others leave it to the layers below them.
    """
    keras: Any = sys.modules.get("keras")
    for path, layer in _layers_of_keras_3(model):
        if not layer.built and type(layer).build not in (keras.Layer.build, keras.Model.build):
            yield path, layer


def tensors_in(directory: str) -> str:
    """Returns the common start of the paths of the tensors in a checkpoint."""
    return os.path.join(directory, _TENSORS)
