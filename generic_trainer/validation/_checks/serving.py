"""Checks of the model as servers and BulkInferrer load and call it."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer._core.machine import resident_memory_mb
from generic_trainer._core.texts import reason_of
from generic_trainer.errors import DataError
from generic_trainer.validation._ahead import decode_outputs
from generic_trainer.validation._check import Finding, check, fail, note, skip, warn
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._scoring import call, difference, run_signature, session_of
from generic_trainer.validation._signatures import describe_info, nodes_of, shape_of

_WARMUP_FILE = Path("assets.extra/tf_serving_warmup_requests")
_MULTI_INFERENCE = "multi_inference_log"
_REQUEST_KINDS = ("predict_log", "classify_log", "regress_log", _MULTI_INFERENCE)
_METHODS = "tensorflow/serving/"
_MAX_REQUESTS = 1000  # WarmupConsts::kMaxNumRecords of TF Serving
_MIN_REPLAYED = 100
_MAX_REPLAY_S = 1.0  # for requests beyond these
_WARMUP_REMEDY = (
    "write the requests again from examples that the signature takes, or delete the file"
)
_MAX_CALLS = 11
_MAX_SECONDS = 0.5  # where the contract has a limit
_SOME_SECONDS = 0.05


@check("loads", needs=("serve_tag", "file_ops"))
def loads(model: ModelUnderTest) -> Iterator[Finding]:
    """`tf.saved_model.load` loads the model elsewhere than where it was exported.

    The model is loaded in a process without your code, and from another directory, as every
    consumer does.

    Example: a table that the exported object does not track; a vocabulary that is read from where
    the model was first written.
    """
    model.op_libraries  # noqa: B018 - imports on first use
    if model.memory_before_mb is None:  # as nothing has been read
        model.memory_before_mb = resident_memory_mb()
    try:
        model.loaded  # noqa: B018 - loads on first use
    except Exception as error:
        yield fail(
            f"tf.saved_model.load raises {reason_of(error)}",
            "the model was loaded in a process without your code and from another directory: "
            "track every variable, table and asset as an attribute of the exported object, and "
            "export whole files",
        )


@check("warmup", needs=("loads", "devices"))
def warmup(model: ModelUnderTest) -> Iterator[Finding]:
    """Every warm-up request of the model can be answered.

    TF Serving replays `assets.extra/tf_serving_warmup_requests` before it takes traffic, and a
    model whose requests fail is not served.

    Example: a request with an input that was renamed since; a file of 1,001 requests, or a
    compressed one.
    """
    if _WARMUP_FILE not in model.files:
        for path in model.files:
            if path.name.startswith(_WARMUP_FILE.name):
                yield warn(
                    f"{path} is not where TF Serving looks for warm-up requests: {_WARMUP_FILE}",
                    f"move it to {_WARMUP_FILE}, or delete it",
                )
        yield skip(f"no {_WARMUP_FILE}")
        return
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError:
        yield skip("the package tensorflow-serving-api, which reads the requests, is missing")
        return
    file = str(model.directory / _WARMUP_FILE)
    if not (model.directory / _WARMUP_FILE).stat().st_size:
        yield note(f"{_WARMUP_FILE} has no request")
        return
    from generic_trainer._core.records import look_at, read_records  # it imports TensorFlow

    try:
        if compression := look_at(file, whatever_its_name=True).compression:
            yield fail(
                f"{_WARMUP_FILE} is compressed ({compression}), and TF Serving reads it as it is",
                "write it with tf.io.TFRecordWriter(path), without options",
            )
            return
        records = read_records(file, _MAX_REQUESTS + 1)
        requests = [prediction_log_pb2.PredictionLog.FromString(record) for record in records]
    except Exception as error:
        reason = str(error) if isinstance(error, DataError) else reason_of(error)
        yield fail(f"{_WARMUP_FILE} cannot be read: {reason}", _WARMUP_REMEDY)
        return
    if len(records) > _MAX_REQUESTS:
        yield fail(
            f"{_WARMUP_FILE} has more than {_MAX_REQUESTS} requests: TF Serving does not load the "
            "model",
            "keep a few requests of each kind",
        )
    yield from _replay(model, dict(zip(records, enumerate(requests), strict=True)).values())


def _replay(model: ModelUnderTest, requests: Iterable[tuple[int, Any]]) -> Iterator[Finding]:
    """Yields what is wrong with different requests, which TF Serving replays while it loads."""
    started, replayed = time.perf_counter(), 0
    for index, request in requests:
        kind = request.WhichOneof("log_type")
        if kind is None or kind == "session_run_log":
            problem = f"TF Serving cannot replay {kind or 'a log of no request'}"
        elif kind not in _REQUEST_KINDS:
            yield note(f"request {index} is a {kind}: not replayed")
            continue
        else:
            body = getattr(request, kind).request
            tasks = _tasks(kind, body)
            problems = (_request_problem(model, *task, body) for task in tasks)
            problem = _task_problem(kind, tasks) or next(filter(None, problems), "")
            in_time = time.perf_counter() - started < _MAX_REPLAY_S
            if not problem and (in_time or replayed < _MIN_REPLAYED):
                replayed += 1
                errors = (_error_of(model, *task, body) for task in tasks)
                problem = next(filter(None, errors), "")
        if problem:
            yield fail(f"request {index}: {problem}", _WARMUP_REMEDY)
    yield note(f"{replayed} different requests replayed")


def _tasks(kind: str, body: Any) -> list[tuple[str, str]]:
    """Returns what a request asks for: method and signature; several in a multi-inference."""
    asked = [(kind.removesuffix("_log"), body)] if kind != _MULTI_INFERENCE else [
        (task.method_name.removeprefix(_METHODS), task) for task in body.tasks
    ]  # fmt: skip
    return [(method, each.model_spec.signature_name or "serving_default") for method, each in asked]


def _task_problem(kind: str, tasks: Sequence[tuple[str, str]]) -> str:
    """Returns what TF Serving would refuse in the tasks of a multi-inference."""
    if kind != _MULTI_INFERENCE:
        return ""
    names = [name for _, name in tasks]
    if not tasks or len(set(names)) < len(names):
        return f"expected different signatures, it asks for {names}"
    if unknown := sorted({method for method, _ in tasks} - {"classify", "regress"}):
        return f"several signatures at once can classify and regress only, it asks for {unknown}"
    return ""


def _request_problem(model: ModelUnderTest, method: str, name: str, body: Any) -> str:
    """Returns what TF Serving would refuse in a request before it runs, empty for nothing."""
    import tensorflow as tf

    signature = model.signatures.get(name)
    if signature is None:
        return f"it asks for signature {name!r}, which is missing"
    if method != "predict":
        if signature.method_name == _METHODS + method:
            return ""
        return f"it asks to {method}, and {name!r} has the method {signature.method_name!r}"
    needed = set(signature.inputs) - set(getattr(signature, "defaults", ()))
    if not needed <= set(body.inputs) <= set(signature.inputs):
        return f"signature {name!r} takes {sorted(signature.inputs)}, it has {sorted(body.inputs)}"
    if unknown := sorted(set(body.output_filter) - set(signature.outputs)):
        return f"it asks for the outputs {unknown}, signature {name!r} has none of that name"
    for key, value in sorted(body.inputs.items()):
        if value.dtype != signature.inputs[key].dtype:
            return (
                f"input {key!r} of signature {name!r} is {describe_info(signature.inputs[key])}, "
                f"it has {tf.as_dtype(value.dtype).name}"
            )
    return ""


def _error_of(model: ModelUnderTest, method: str, name: str, body: Any) -> str:
    try:
        call(model.loaded.signatures[name], _warmup_inputs(model, method, name, body))
    except Exception as error:
        return f"signature {name!r} raises {reason_of(error)}"
    return ""


def _warmup_inputs(
    model: ModelUnderTest, method: str, name: str, body: Any
) -> dict[str, np.ndarray]:
    import tensorflow as tf

    if method == "predict":
        return {key: tf.make_ndarray(value) for key, value in body.inputs.items()}
    examples = body.input.example_list.examples
    records = np.array([example.SerializeToString() for example in examples], dtype=object)
    return dict.fromkeys(model.signatures[name].inputs, records)


@check("latency", needs=("scores",))
def latency(model: ModelUnderTest) -> Iterator[Finding]:
    """One example is scored within the contract's time, in the median.

    Whoever asks waits. The median for one example is measured on the processors of the machine that
    checks; without `max_latency_ms` it is a number in the report and nothing more.

    Example: `ServingContract(max_latency_ms=5)` and a model of 12 ms.
    """
    served = [name for name in model.serving_signatures if name in model.scores]
    if not served:
        yield skip("no signature was called")
        return
    name = "serving_default" if "serving_default" in served else served[0]
    budget = model.contract.max_latency_ms
    most_s = _SOME_SECONDS if budget is None else _MAX_SECONDS
    feed = model.scores[name].feed
    median_ms = _median_ms(model.loaded.signatures[name], feed.take([0]), most_s)
    model.facts["latency_ms"] = round(median_ms, 3)
    if budget is not None and median_ms > budget:
        yield fail(
            f"signature {name!r} takes {median_ms:.3g} ms for one example, the budget is "
            f"{budget:g} ms (on the CPU of the machine that checks)",
            "make the model smaller, move work into Transform, or raise max_latency_ms",
        )
    else:
        yield note(f"{median_ms:.3g} ms for one example on this machine's CPU")


@check("memory", needs=("scores",))
def memory(model: ModelUnderTest) -> Iterator[Finding]:
    """Loading and scoring stays within the contract's memory.

    A server that loads more than it has is killed, with every other model that it serves. Without
    `max_memory_mb` this is a number in the report and nothing more.

    Example: `ServingContract(max_memory_mb=500)` and embeddings of 2 GB.
    """
    before_mb, after_mb = model.memory_before_mb, resident_memory_mb()
    if before_mb is None or after_mb is None:
        yield skip("resident memory cannot be read on this system")
        return
    used_mb = max(after_mb - before_mb, 0.0)
    model.facts["memory_mb"] = round(used_mb, 1)
    budget = model.contract.max_memory_mb
    if budget is not None and used_mb > budget:
        yield fail(
            f"loading and scoring took {used_mb:.0f} MiB, the budget is {budget:g} MiB",
            "make the model smaller, share embeddings, or raise max_memory_mb",
        )
    else:
        yield note(f"{used_mb:.0f} MiB to load and score")


def _median_ms(signature: Any, example: dict[str, np.ndarray], most_s: float) -> float:
    taken: list[float] = []
    started = time.perf_counter()
    while len(taken) < _MAX_CALLS and time.perf_counter() - started < most_s:
        before = time.perf_counter()
        call(signature, example)
        taken.append(1000 * (time.perf_counter() - before))
    return statistics.median(taken)


@check("session", needs=("loads", "devices"))
def session(model: ModelUnderTest) -> Iterator[Finding]:
    """A graph session scores what the Python object scores.

    BulkInferrer, TF Serving and every C++ server restore the variables that the checkpoint
    tracks and run the graph. `tf.saved_model.load` restores more than that.

    Example: `tf.saved_model.save` on a Keras 3 model, whose variables the checkpoint does not
    track.
    """
    found = model.ahead.found()
    outputs = None if found is None else decode_outputs(found, model.scores)
    if outputs is not None:
        model.facts["found_ahead"] = [session.name]
        for name in model.scores:
            yield from _compare_with_session(model, name, outputs[name])
        return
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(model.for_session())
        try:
            running = stack.enter_context(session_of(directory))
        except Exception as error:
            yield fail(
                f"a tf.compat.v1.Session cannot load the model: {reason_of(error)}",
                "BulkInferrer and TF Serving load it this way: see the other failures first",
            )
            return
        for name, scores in model.scores.items():
            try:
                given = run_signature(running, model.signatures[name], scores.feed)
            except Exception as error:
                yield _judge(model, name)(*_why_session_fails(model, running, name, error))
                continue
            yield from _compare_with_session(model, name, given)


def _judge(model: ModelUnderTest, signature: str) -> Callable[[str, str], Finding]:
    return fail if signature in model.serving_signatures else warn


def _compare_with_session(
    model: ModelUnderTest, name: str, outputs: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    signature, scores = model.signatures[name], model.scores[name]
    for key, value in sorted(outputs.items()):
        declared = shape_of(signature.outputs[key])
        if declared is not None and not _is_shape(np.shape(value), declared):
            yield warn(
                f"signature {name!r}: output {key!r} is declared as "
                f"{describe_info(signature.outputs[key])}, a session gives the shape "
                f"{list(np.shape(value))}",
                "clients allocate and reshape by what the signature declares: take out the "
                "set_shape that is wrong",
            )
        if key not in scores.batch:
            continue  # signature_tensors says so
        changed, certain = difference(value, scores.batch[key])
        if changed and certain and not scores.varies(key)[0]:
            yield _judge(model, name)(
                f"signature {name!r}, output {key!r}: a session gives {changed} from Python",
                "the two loaders restored different values: export again with "
                "generic_trainer.training.export_model",
            )


def _is_shape(shape: tuple[int, ...], declared: list[int | None]) -> bool:
    return len(shape) == len(declared) and all(
        dim in (None, size) for dim, size in zip(declared, shape, strict=True)
    )


def _why_session_fails(
    model: ModelUnderTest, running: Any, name: str, error: Exception
) -> tuple[str, str]:
    """Returns what is wrong, and the remedy."""
    # What the signature does not read, such as an optimizer's state, is nobody's concern.
    read = {node.name for node in nodes_of(model.meta_graph.graph_def, model.signatures[name])}
    untracked = _uninitialized(running, read)
    if untracked:
        return (
            f"signature {name!r}: the variables {', '.join(map(repr, untracked[:8]))} are not "
            "tracked, so that a session never restores them, though tf.saved_model.load does: "
            f"{reason_of(error)}",
            "export with generic_trainer.training.export_model or, for a Keras 3 model, with "
            "model.export / ExportArchive; tf.saved_model.save(keras_3_model) has this flaw. "
            "Keras 2 has not: TF_USE_LEGACY_KERAS=1. To publish the model all the same: "
            "ServingContract(severities={'session': 'warn'})",
        )
    return (
        f"signature {name!r} fails in a tf.compat.v1.Session: {reason_of(error)}",
        "BulkInferrer and TF Serving run it this way; look at devices, fixed batch sizes and "
        "tables that need initialisation",
    )


def _uninitialized(running: Any, nodes: Container[str]) -> list[str]:
    """Returns the names of variables that nothing has restored, among some nodes."""
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
