"""Graph sessions of a model, in which BulkInferrer, TF Serving and other C++ servers run it."""

from collections.abc import Container
from typing import Any

from generic_trainer.validation._scoring import Inputs, Outputs, dense
from generic_trainer.validation._signatures import Signature


def open_session(directory: str) -> Any:
    """Returns a graph session with a model, as BulkInferrer, TF Serving and C++ servers load it.

    Raises:
        Exception: a consumer would end with it.
    """
    import tensorflow as tf

    softly = tf.compat.v1.ConfigProto(allow_soft_placement=True)  # as TF Serving does
    # It takes longer than it saves in the one call, and the object has been called with it.
    softly.graph_options.rewrite_options.disable_meta_optimizer = True
    running = tf.compat.v1.Session(graph=tf.Graph(), config=softly)
    tf.compat.v1.saved_model.load(running, ["serve"], directory)
    return running


class SessionSignature:
    """A signature of a model in a session, which is called as one of a loaded model is.

    It is for models that only a session can load, such as graphs of TensorFlow 1 that return
    reference variables.

    Args:
        running: the session.
        signature: its description.
    """

    captured_inputs = ()

    def __init__(self, running: Any, signature: Signature) -> None:
        import tensorflow as tf

        self._running = running
        self._signature = signature
        specs = {
            n: tf.TensorSpec(tensor.shape, tensor.dtype) for n, tensor in signature.inputs.items()
        }
        self.structured_input_signature = ((), specs)

    def __call__(self, **inputs: Any) -> Outputs:
        arrays = {key: tensor.numpy() for key, tensor in inputs.items()}
        return run_signature(self._running, self._signature, arrays)


def run_signature(running: Any, signature: Signature, inputs: Inputs) -> Outputs:
    """Returns the dense outputs that a session gives for a signature."""
    fetched = {
        key: tensor.info.name for key, tensor in signature.outputs.items() if tensor.info.name
    }
    fed = {signature.inputs[key].info.name: value for key, value in inputs.items()}
    return {key: dense(value) for key, value in running.run(fetched, fed).items()}


def uninitialized(running: Any, nodes: Container[str]) -> list[str]:
    """Returns the names of variables among some nodes that were not restored."""
    import tensorflow as tf

    checks = {
        op.get_attr("shared_name").decode() or op.name: tf.raw_ops.VarIsInitializedOp(
            resource=op.outputs[0]
        )
        for op in running.graph.get_operations()
        if op.type == "VarHandleOp" and op.name in nodes
    }
    try:
        ready = running.run(checks)
    except Exception:
        return []
    return sorted(name for name, is_ready in ready.items() if not is_ready)
