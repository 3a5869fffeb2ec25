"""The files of a SavedModel, without those parts of a model that only its training needs."""

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.files import write_whole
from generic_trainer._core.keras import is_keras_3
from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.training._walk import serves_training, walk

T = TypeVar("T")

# Resources by their base class, of which the initializer of a model of TensorFlow 1 is, too.
_RESOURCES = tf.saved_model.experimental.TrackableResource.__bases__
_SAVED = (tf.Variable, tf.saved_model.Asset, *_RESOURCES)
_EVERYWHERE = re.compile(r"(/device:CPU:(0|\*))?")


class ModelParts(tf.Module):
    """The parts of a model that are saved.

    Attributes:
        model_weights: TensorFlow's variables, in the order of `model.weights`; available after
            `tf.saved_model.load`, for a warm start.
        parts: everything else that has to be saved.
    """

    def __init__(self, model: Any, others: Sequence[Any] = ()) -> None:
        """Takes the parts out of a model of Keras 2, Keras 3 or TensorFlow, and adds others.

        Raises:
            ConfigurationError: Keras runs on another backend than TensorFlow.
        """
        super().__init__()
        name = "weights" if hasattr(model, "weights") else "variables"
        # Keras 2 also lists the vocabulary of an adapted lookup layer, which is in a table.
        weights = [weight for weight in getattr(model, name, ()) if not _is_vocabulary(weight)]
        self.model_weights = [_unwrapped(weight) for weight in weights]
        self.parts = [*tracked_parts(model), *others]


def tracked_parts(root: Any) -> list[Any]:
    """Returns all variables, tables and assets below `root`, each once.

    Parts that serve training alone are left out: optimizers, which would triple the size of the
    export, and metrics. So are the functions of the model, such as a `train_step`, which may need
    the cluster of the training.
    """
    parts: dict[int, Any] = {}
    seen = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen or (node is not root and serves_training(node)):
            continue
        seen.add(id(node))
        if isinstance(node, _SAVED):
            parts[id(node)] = node
        elif is_keras_3(node) and hasattr(node, "variables"):
            parts.update((id(variable), variable) for variable in map(_unwrapped, node.variables))
        waiting.extend(tf.train.TrackableView.children(node).values())
    # Keras 3 hides from TensorFlow the layers in lists and dicts, with their tables.
    hidden = (part for _, part in walk(root, deferred={}) if isinstance(part, _SAVED))
    parts.update((id(part), part) for part in hidden if not isinstance(part, tf.Variable))
    return list(parts.values())


def save(root: ModelParts, directory: str, signatures: Mapping[str, Any]) -> None:
    """Saves `root`, without ties to the machine that trained it.

    The signatures are traced within `tf.saved_model.save`, and there alone does TensorFlow read a
    distributed variable as a plain one, without its devices and without collectives.

    Raises:
        ExportError: a signature uses a table or variable that is not part of `root`.
    """
    try:
        tf.saved_model.save(root, directory, signatures=dict(signatures))
    except AssertionError as error:
        raise ExportError(
            "tf.saved_model.save refuses the model, as it does if it uses a variable, lookup "
            "table or asset that it does not own; make it an attribute of the model or of one of "
            f"its layers (self.table = ...): {error}",
            path=directory,
        ) from error
    _clear_devices(directory)


def outside_of_strategy(function: Callable[[], T]) -> T:
    """Calls `function` outside the scope of any distribution strategy.

    A scope belongs to its thread and cannot be left from within, so inside one this is another
    thread.
    """
    if not tf.distribute.has_strategy():
        return function()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def _is_vocabulary(weight: Any) -> bool:
    return not isinstance(weight, tf.Variable) and not hasattr(weight, "value")


def _unwrapped(weight: Any) -> tf.Variable:
    """Returns TensorFlow's variable behind a weight.

    A Keras 2 weight is such a variable. A Keras 3 weight wraps one; saved by itself it is found
    again by `tf.saved_model.load` and not by a session, so the wrapper is taken off.
    """
    variable = weight if isinstance(weight, tf.Variable) else weight.value
    if not isinstance(variable, tf.Variable):
        raise ConfigurationError(
            "a SavedModel can be written where Keras' backend is TensorFlow, but the model's "
            f"weights are {type(variable).__module__}.{type(variable).__name__}; set "
            "KERAS_BACKEND=tensorflow, save with model.save('model.keras') and load it there"
        )
    return variable


def _clear_devices(directory: str) -> None:
    """Removes devices from the graph that other machines may not have.

    `tf.saved_model.save` turns mirrored variables into plain ones and drops their devices. It
    keeps each `tf.device` of the model's code; neither an option nor an enclosing `tf.device`
    changes it in a nested `tf.function`, so the file is edited.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    path = os.path.join(directory, tf.saved_model.SAVED_MODEL_FILENAME_PB)
    with tf.io.gfile.GFile(path, "rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read())
    graphs = [meta_graph.graph_def for meta_graph in saved.meta_graphs]
    functions = [function.node_def for graph in graphs for function in graph.library.function]
    nodes = itertools.chain(*(graph.node for graph in graphs), *functions)
    tied = [node for node in nodes if not _EVERYWHERE.fullmatch(node.device)]
    for node in tied:
        node.device = ""
    if tied:
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(saved.SerializeToString(deterministic=True))
        write_whole(f"{directory}/fingerprint.pb", internals.TF_CREATE_FINGERPRINT.get()(directory))
