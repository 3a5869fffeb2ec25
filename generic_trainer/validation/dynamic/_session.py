"""Does the model load the way BulkInferrer and the C++ servers load it?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generic_trainer.validation._check import check
from generic_trainer.validation._compare import difference
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail
from generic_trainer.validation._scoring import Scores, first_line

__all__ = ["session"]


@check("session", needs=("loads", "devices"))
def session(model: ModelUnderTest) -> Iterator[Finding]:
    """A graph session scores what the Python object scores.

    BulkInferrer, TF Serving and every C++ server restore the variables that the checkpoint
    tracks and run the graph. `tf.saved_model.load` restores more than that.
    """
    import tensorflow as tf

    model.release()
    with tf.Graph().as_default(), tf.compat.v1.Session() as running:
        try:
            tf.compat.v1.saved_model.load(running, ["serve"], str(model.directory))
        except Exception as error:
            yield fail(
                f"a tf.compat.v1.Session cannot load the model: {first_line(error)}",
                "BulkInferrer and TF Serving load it this way: see the other failures first",
            )
            return
        for name, scores in model.scores.items():
            yield from _compare(model, running, name, scores)


def _compare(model: ModelUnderTest, running: Any, name: str, scores: Scores) -> Iterator[Finding]:
    signature = model.signatures[name]
    outputs = {key: _handles(info) for key, info in signature.outputs.items()}
    dense = {key: handle for key, handle in outputs.items() if handle}
    feed = {signature.inputs[key].name: value for key, value in scores.feed.inputs.items()}
    try:
        found = running.run(dense, feed)
    except Exception as error:
        yield _judge(running, name, error)
        return
    for key, value in sorted(found.items()):
        told, certain = difference(value, scores.batch[key])
        if told and certain and not _is_random(model):
            yield fail(
                f"signature {name!r}, output {key!r}: a session gives {told} from Python",
                "the two loaders restored different values: export again with "
                "generic_trainer.training.export_model",
            )


def _judge(running: Any, name: str, error: Exception) -> Finding:
    untracked = _uninitialized(running)
    if untracked:
        return fail(
            f"signature {name!r}: the variables {', '.join(map(repr, untracked[:8]))} are not "
            "tracked, so that a session never restores them, though tf.saved_model.load does: "
            f"{first_line(error)}",
            "export with generic_trainer.training.export_model or, for a Keras 3 model, with "
            "model.export / ExportArchive; tf.saved_model.save(keras_3_model) has this flaw",
        )
    return fail(
        f"signature {name!r} fails in a tf.compat.v1.Session: {first_line(error)}",
        "BulkInferrer and TF Serving run it this way; look at devices, fixed batch sizes and "
        "tables that need initialisation",
    )


def _uninitialized(running: Any) -> list[str]:
    """Names of variables that nothing has restored."""
    import tensorflow as tf

    handles = [op for op in running.graph.get_operations() if op.type == "VarHandleOp"]
    with running.graph.as_default():
        checks = {
            op.get_attr("shared_name").decode() or op.name: tf.raw_ops.VarIsInitializedOp(
                resource=op.outputs[0]
            )
            for op in handles
        }
    try:
        ready = running.run(checks)
    except Exception:
        return []
    return sorted(name for name, is_ready in ready.items() if not is_ready)


def _handles(info: Any) -> str:
    return info.name if info.WhichOneof("encoding") == "name" else ""


def _is_random(model: ModelUnderTest) -> bool:
    return model.contract.severities.get("deterministic") in ("warn", "skip")
