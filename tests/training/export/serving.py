"""Runs a SavedModel the ways its consumers do."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


def move(directory: str) -> str:
    """Moves an export, so that a path in it that is not relative leads nowhere."""
    moved = Path(directory).with_name(f"{Path(directory).name}_moved")
    shutil.move(directory, moved)
    return str(moved)


def serve(
    directory: str, signature: str = "serving_default", **inputs: Any
) -> dict[str, np.ndarray]:
    """Calls a signature in Python and in a TF 1 session, and asserts that both agree.

    BulkInferrer and the C++ servers load a model as the session does.
    """
    in_python = _in_python(directory, signature, inputs)
    in_session = _in_session(directory, signature, inputs)
    assert in_python.keys() == in_session.keys()
    for name, expected in in_python.items():
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(in_session[name], expected, rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(in_session[name], expected, err_msg=name)
    return in_python


def _in_python(directory: str, signature: str, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    loaded = tf.saved_model.load(directory)
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    outputs = loaded.signatures[signature](**tensors)
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def _in_session(directory: str, signature: str, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], directory)
        found = meta_graph.signature_def[signature]
        feed = {found.inputs[name].name: value for name, value in inputs.items()}
        fetch = {name: info.name for name, info in found.outputs.items()}
        return session.run(fetch, feed)
