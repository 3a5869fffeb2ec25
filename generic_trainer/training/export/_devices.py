"""Cuts the ties of a saved graph to the machine that trained it."""

from __future__ import annotations

import os
import re
from typing import Any

import tensorflow as tf

__all__ = ["clear_devices"]

_EVERYWHERE = re.compile(r"(/device:CPU:(0|\*))?")


def clear_devices(directory: str) -> None:
    """Removes every device from the graph that not every machine has.

    `tf.saved_model.save` turns mirrored variables into plain ones and drops their devices. It
    keeps what stands in a `tf.device` of the model's own code; no option and no enclosing
    `tf.device` reaches that in a nested `tf.function`, so the file is edited.

    Args:
        directory: the SavedModel. Its fingerprint is computed anew where the graph changes.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    path = os.path.join(directory, tf.saved_model.SAVED_MODEL_FILENAME_PB)
    with tf.io.gfile.GFile(path, "rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read())
    tied = [node for node in _nodes(saved) if not _EVERYWHERE.fullmatch(node.device)]
    if not tied:
        return
    for node in tied:
        node.device = ""
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(saved.SerializeToString(deterministic=True))
    _renew_fingerprint(directory)


def _nodes(saved: Any) -> list[Any]:
    graphs = [meta_graph.graph_def for meta_graph in saved.meta_graphs]
    nodes = [node for graph in graphs for node in graph.node]
    functions = [function for graph in graphs for function in graph.library.function]
    return nodes + [node for function in functions for node in function.node_def]


def _renew_fingerprint(directory: str) -> None:
    from tensorflow.python.saved_model import fingerprinting_utils

    fingerprinting_utils.write_fingerprint(directory)
