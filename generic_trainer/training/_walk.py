"""The parts of a model, found by following the attributes of its objects.

Neither Keras lists all of them. Keras 3 leaves out optimizers other than `model.optimizer` and
every plain `tf.Variable`; Keras 2 leaves out variables of objects that TensorFlow does not track.
"""

import collections
import functools
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from generic_trainer._core.keras import is_class_of_keras

_SCALARS = {type(None), bool, int, float, complex, str, bytes, set, frozenset}
_OFTEN_EMPTY = {list, dict, tuple}  # half of what the layers of Keras 3 have
_LEAVES = (type, tf.Variable, tf.Tensor, tf.types.experimental.Callable)
_STANDARD = os.path.dirname(os.__file__)
# What Keras and TensorFlow note about the calls of layers, half of what a functional model holds.
# The arguments of the calls are not among them: an operation may hold a variable nowhere else.
_NOTES = {
    *("CallFunctionSpec", "Config", "DTypePolicy", "FullArgSpec", "InputSpec", "KerasHistory"),
    *("KerasTensor", "Policy", "SerializableDict", "TensorShape", "TensorSpec", "TrackedSet"),
    "Tracker",
}
_NOTING = {"inspect", "keras", "tensorflow", "tf_keras"}


def walk(
    root: Any, seen: dict[int, Any] | None = None, deferred: dict[str, Any] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yields the parts of an object with their paths, each part once.

    The shortest path comes first, so that neither the order in which attributes were set nor their
    number changes the path of a part.

    Args:
        root: a model, for example.
        seen: `id` → part, of those that are not visited again; gets those that are visited.
        deferred: gets the optimizers and metrics below `root` by their paths, instead of a visit.
    """
    seen = {} if seen is None else seen
    waiting = collections.deque([("", root)])
    while waiting:
        path, part = waiting.popleft()
        if id(part) in seen:
            continue
        if deferred is not None and part is not root and serves_training(part):
            deferred.setdefault(path, part)
            continue
        seen[id(part)] = part
        yield path, part
        children = [*_children(part)]
        if len(children) > 1:
            children.sort(key=lambda child: child[0])
        waiting.extend([(f"{path}.{name}", child) for name, child in children])


def _children(part: Any) -> Iterator[tuple[str, Any]]:
    items: Iterable[tuple[Any, Any]] = ()
    classes: Any = type(part), part.__class__
    match _kind(*classes):
        case "mapping":
            items = part.items()
        case "sequence":
            # Sequential models of both Kerases have one only once they are built.
            items = enumerate(
                member for member in part if not is_class_of_keras(type(member), "InputLayer")
            )
        case "object":
            items = attributes_in(part).items()
    for number, (name, value) in enumerate(items):
        kind = type(value)
        if kind not in _SCALARS and (kind not in _OFTEN_EMPTY or value):
            # Keys of other types may be named otherwise in another process.
            yield name if isinstance(name, str) else f"{number:06}", value


def attributes_in(part: Any) -> dict[str, Any]:
    """Returns the attributes of a part, also those in slots of a class that is no standard one."""
    own = {**getattr(part, "__dict__", {})}
    classes: Any = type(part), part.__class__
    if _kind(*classes) == "object":
        for name in _slots(classes[0]):
            if hasattr(part, name):  # it may have no value
                own[name] = getattr(part, name)
    return own


@functools.lru_cache(4096)
def _kind(*classes: type) -> str:
    """Returns how to follow a part: a model has thousands, of some thirty classes.

    Args:
        classes: those of one part; wrappers, such as Keras 2's of a dict, have a second one.
    """
    package = classes[0].__module__.partition(".")[0]
    if classes[0].__name__ in _NOTES and package in _NOTING:
        return "leaf"
    if any(issubclass(cls, Mapping) for cls in classes):
        return "mapping"
    if any(issubclass(cls, (list, tuple, collections.deque)) for cls in classes):
        return "sequence"
    # A variable of Keras 3 leads to the one of TensorFlow that it has. A function leads to all that
    # its graph uses, such as the optimizer.
    if any(issubclass(cls, _LEAVES) for cls in classes):
        return "leaf"
    # A module of the user's may have the name of a standard one, such as `profile`.
    file = getattr(sys.modules.get(package), "__file__", None) or _STANDARD
    is_standard = package in sys.stdlib_module_names and file.startswith(_STANDARD)
    return "leaf" if is_standard or package in ("numpy", "generic_trainer") else "object"


@functools.lru_cache(4096)
def _slots(kind: type) -> tuple[str, ...]:
    """Returns the attributes that instances of a class have beside their `__dict__`."""
    return tuple(
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if "__slots__" in vars(base) and isinstance(member, types.MemberDescriptorType)
    )


def serves_training(part: Any) -> bool:
    """Returns whether a part is an optimizer or a metric."""
    kind: Any = type(part)
    return _serves_training(kind)


@functools.lru_cache(4096)
def _serves_training(kind: type) -> bool:
    is_metric = hasattr(kind, "update_state") and hasattr(kind, "result")
    return is_metric or hasattr(kind, "apply_gradients")


def classes_of_user(kind: type) -> list[type]:
    """Returns the classes of an object that are neither Keras' and TensorFlow's nor our own."""
    ours = ("builtins", "generic_trainer", "keras", "tensorflow", "tf_keras")
    return [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in ours]


def codes_of_user(kind: type, leaving_out: str = "") -> Iterator[types.CodeType]:
    """Yields the code of the methods of the user's classes, and of the functions within it.

    Args:
        kind: the class of an object.
        leaving_out: the name of a method.
    """
    members = [item for each in classes_of_user(kind) for item in vars(each).items()]
    waiting: list[Any] = [member for name, member in members if name != leaving_out]
    while waiting:
        part = waiting.pop()
        if isinstance(part, property):
            waiting += [part.fget, part.fset]
        elif isinstance(part, types.CodeType):
            yield part
            waiting += [inner for inner in part.co_consts if isinstance(inner, types.CodeType)]
        else:
            function = inspect.unwrap(getattr(part, "python_function", part))
            waiting += filter(None, [getattr(function, "__code__", None)])
