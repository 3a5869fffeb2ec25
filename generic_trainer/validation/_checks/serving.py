"""Checks of the model as servers and BulkInferrer load and call it."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer._core.machine import resident_memory_mb
from generic_trainer._core.texts import reason_of
from generic_trainer.validation._check import (
    Finding,
    Findings,
    Skip,
    check,
    fail,
    if_concerned,
    note,
    untested,
    warn,
)
from generic_trainer.validation._checks.signatures import inferred_signatures
from generic_trainer.validation._feeds import is_tiny
from generic_trainer.validation._graph import in_main_graph, library_of, node_name, tensors_of
from generic_trainer.validation._model import PREPROCESSING, ModelUnderTest
from generic_trainer.validation._scoring import Outputs
from generic_trainer.validation._session import open_session, run_signature, uninitialized
from generic_trainer.validation._signatures import fits

_WARMUP_FILE = Path("assets.extra/tf_serving_warmup_requests")
_MULTI_INFERENCE = "multi_inference_log"
_REQUEST_KINDS = ("predict_log", "classify_log", "regress_log", _MULTI_INFERENCE)
_METHODS = "tensorflow/serving/"
_MAX_REQUESTS = 1000  # WarmupConsts::kMaxNumRecords of TF Serving
_MAX_REPLAYED = 200  # different ones; the names in all others are compared
_WARMUP_REMEDY = "write the requests again, with a tf.io.TFRecordWriter, or delete the file"
_UNTRACKED_REMEDY = (
    "export with generic_trainer.training.export_model or, for a Keras 3 model, with model.export "
    "and not with tf.saved_model.save. To publish the model all the same: "
    "ServingContract(severities={'session': 'warn'})"
)
_MAX_CALLS = 11
_MAX_SECONDS = 0.5  # where the contract has a limit
_SOME_SECONDS = 0.05


@check(after="eval_signatures", needs="serve_tag file_ops")
def loads(model: ModelUnderTest) -> Findings:
    """`tf.saved_model.load` loads the model elsewhere than where it was exported.

    The model is loaded in a process without your code and from another directory, as consumers do.
    BulkInferrer and TF Serving load it into a session instead. A model that only a session can
    load, such as a graph of TensorFlow 1 that returns a reference variable, fails only if an
    Evaluator reads it.

    Example: a table that the exported object does not track; a vocabulary that is read from where
    the model was first written.
    """
    try:
        model.loaded  # noqa: B018 - loads on first use
        if not model.load_error:
            return
        _require_inputs(model)
    except Exception as error:
        reasons = dict.fromkeys(filter(None, (model.load_error, reason_of(error))))
        yield fail(
            f"tf.saved_model.load raises {'; in a session: '.join(reasons)}",
            "track every variable, table and asset as an attribute of the exported object, "
            "and copy whole files: consumers load them without your code, from elsewhere",
        )
        return
    message = f"only a session can load the model; tf.saved_model.load raises {model.load_error}"
    harm = "an Evaluator and Python programs load it that way"
    yield if_concerned(
        model.contract.loads_in_python,
        message,
        harm,
        "export it again with generic_trainer.training.export_model",
    )


@check(after="scores", needs="scores", decided_by="code")
def bulk_inference(model: ModelUnderTest) -> Findings:
    """The signature that a BulkInferrer calls scores the examples as they are serialized.

    A BulkInferrer passes each tf.Example, serialized, to the only input of its signature. If that
    takes another kind of string, such as an image or a line of CSV, the BulkInferrer fails. A model
    of texts does not: its scores are those of the examples' bytes, which is a warning. The
    BulkInferrer calls `serving_default`, unless the contract names signatures. One of these that
    parses examples is enough. If another signature does, the failure is a warning: the BulkInferrer
    may be configured to call that one.

    Example: a `serving_default` for JPEG images in base64, beside a signature that parses examples.
    """
    if not (called := inferred_signatures(model)):
        raise Skip("no BulkInferrer is known to read the model")
    findings = []
    for name, signature in called.items():
        if not signature.is_serialized:
            continue  # see `serialized_input`
        if signature.features:
            return  # see `scores`
        if not model.evidence.raw_records:
            raise Skip("needs raw examples in the contract")
        if (finding := _of_serialized(model, name)) is None:
            return
        findings.append(finding)
    if not findings:
        raise Skip("it takes no strings, see 'serialized_input'")
    yield from findings


def _of_serialized(model: ModelUnderTest, name: str) -> Finding | None:
    """Returns the finding of a signature without features that takes serialized examples."""
    signature, records = model.signatures[name], model.evidence.raw_records
    ((key, tensor),) = signature.inputs.items()
    rows = len(records) if tensor.is_batched else (tensor.shape or [1])[0]
    fed = np.array(list(itertools.islice(itertools.cycle(records), rows)), dtype=object)
    others = [n for n, s in model.signatures.items() if s.is_serialized and s.features]
    others = [other for other in others if not other.startswith(PREPROCESSING)]
    remedy = (
        f"let {name!r} parse serialized tf.Examples, e.g. with training.export_model; or, if the "
        f"BulkInferrer's ModelSpec(model_signature_name=[...]) names another signature: "
        f"ServingContract(signatures={(name, *(others or ['NAME'])[:1])!r})"
    )
    subject = f"signature {name!r} with serialized examples, which a BulkInferrer sends"
    problem = ""
    try:
        outputs = model.call(name, {key: fed})
        if odd := [name for name, output in outputs.items() if output.shape[:1] != fed.shape]:
            shape = list(outputs[odd[0]].shape)
            problem = f"{len(fed)} rows give output {odd[0]!r} of shape {shape}"
    except Exception as error:
        problem = reason_of(error)
    if problem:
        finding = warn if others else fail
        return finding(f"{subject}: {problem}", remedy, may_be_meant=True)
    # Ops of other libraries may parse, but for those that split texts.
    parsing = {op for op in model.foreign_ops if library_of(op) != "tensorflow_text"}
    if signature.parses or parsing & signature.ops:
        return None
    return warn(
        f"{subject}: it parses no examples, and scores their bytes as if they were a text",
        remedy,
        may_be_meant=True,
    )


def _require_inputs(model: ModelUnderTest) -> None:
    """Raises a LookupError if no request gives a value that an output depends on."""
    for name, signature in model.serving_signatures.items():
        fed = {node_name(tensor) for tensor in tensors_of(signature.proto.inputs)}
        outputs = in_main_graph(tensors_of(signature.proto.outputs))
        for (_, node), proto in model.graph.needed_for(outputs, fed).items():
            if proto.op == "Placeholder" and node not in fed:
                raise LookupError(f"signature {name!r} has no input for the placeholder {node!r}")


@check(after="without_label", needs="loads devices", decided_by="rows")
def warmup(model: ModelUnderTest) -> Findings:
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
                    f"{path}: TF Serving looks for warm-up requests in {_WARMUP_FILE}",
                    f"move it to {_WARMUP_FILE}, or delete it",
                )
        raise Skip(f"no {_WARMUP_FILE}")
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError:
        raise Skip(
            "the package tensorflow-serving-api, which reads the requests, is missing"
        ) from None
    file = str(model.directory / _WARMUP_FILE)
    if not (model.directory / _WARMUP_FILE).stat().st_size:
        raise Skip(f"nothing to test: {_WARMUP_FILE} has no request")
    from generic_trainer._core.records import look_at, read_records  # it imports TensorFlow

    try:
        if compression := look_at(file, whatever_its_name=True).compression:
            yield fail(
                f"{_WARMUP_FILE} is compressed ({compression}), which TF Serving cannot read",
                "write it with tf.io.TFRecordWriter(path), without options",
            )
            return
        records = read_records(file, _MAX_REQUESTS + 1)
        requests = [prediction_log_pb2.PredictionLog.FromString(record) for record in records]
    except Exception as error:
        yield fail(f"{_WARMUP_FILE} cannot be read: {reason_of(error)}", _WARMUP_REMEDY)
        return
    if len(records) > _MAX_REQUESTS:
        yield fail(
            f"{_WARMUP_FILE} has more than {_MAX_REQUESTS} requests: TF Serving refuses it",
            "keep a few requests of each kind",
        )
    yield from _replay(model, dict(zip(records, enumerate(requests), strict=True)).values())


def _replay(model: ModelUnderTest, requests: Iterable[tuple[int, Any]]) -> Findings:
    """Yields the faults of different requests, which TF Serving replays while it loads."""
    replayed = 0
    for index, request in requests:
        kind = request.WhichOneof("log_type")
        if kind not in (None, "session_run_log", *_REQUEST_KINDS):
            yield untested(f"request {index} is a {kind}: not replayed")
            continue
        may_run = replayed < _MAX_REPLAYED
        if problem := next(filter(None, _problems(model, kind, request, may_run)), ""):
            yield fail(f"request {index}: {problem}", _WARMUP_REMEDY)
        else:
            replayed += may_run
    yield (note if replayed else untested)(f"{replayed} different requests replayed")


def _problems(
    model: ModelUnderTest, kind: str | None, request: Any, may_run: bool
) -> Iterator[str]:
    """Yields why TF Serving would refuse a request, empty where it would not; calls come last."""
    if kind not in _REQUEST_KINDS:
        yield f"TF Serving cannot replay {kind or 'a log of no request'}"
        return
    body = getattr(request, kind).request
    asked = [(kind.removesuffix("_log"), body)]
    if kind == _MULTI_INFERENCE:
        asked = [(task.method_name.removeprefix(_METHODS), task) for task in body.tasks]
    tasks = [(method, t.model_spec.signature_name or "serving_default") for method, t in asked]
    methods = {method for method, _ in tasks}
    names = {name for _, name in tasks}
    is_right = len(names) == len(tasks) > 0 and methods <= {"classify", "regress"}
    if kind == _MULTI_INFERENCE and not is_right:
        yield f"expected to classify and regress by different signatures, it has {tasks}"
    yield from (_request_problem(model, *task, body) for task in tasks)
    if may_run:
        yield from (_error_of(model, *task, body) for task in tasks)


def _request_problem(model: ModelUnderTest, method: str, name: str, body: Any) -> str:
    """Returns why TF Serving would refuse a request before it runs, empty if it takes it."""
    import tensorflow as tf

    signature = model.signatures.get(name)
    if signature is None:
        return f"it asks for signature {name!r}, which is missing"
    if method != "predict":
        if signature.proto.method_name == _METHODS + method:
            return ""
        return f"it asks to {method}, and {name!r} has the method {signature.proto.method_name!r}"
    subject = f"signature {name!r}"
    needed = set(signature.inputs) - set(getattr(signature.proto, "defaults", ()))
    if not needed <= set(body.inputs) <= set(signature.inputs):
        return f"{subject} takes {sorted(signature.inputs)}, it has {sorted(body.inputs)}"
    if unknown := sorted(set(body.output_filter) - set(signature.outputs)):
        return f"it asks for the outputs {unknown}, {subject} has none of that name"
    for key, value in sorted(body.inputs.items()):
        if (dtype := tf.as_dtype(value.dtype)) != (tensor := signature.inputs[key]).dtype:
            return f"input {key!r} of {subject} is {tensor}, it has {dtype.name}"
    return ""


def _error_of(model: ModelUnderTest, method: str, name: str, body: Any) -> str:
    import tensorflow as tf

    try:
        if method == "predict":
            inputs = {key: tf.make_ndarray(value) for key, value in body.inputs.items()}
        else:
            records = [example.SerializeToString() for example in body.input.example_list.examples]
            inputs = dict.fromkeys(model.signatures[name].inputs, np.array(records, dtype=object))
        model.call(name, inputs)
    except Exception as error:
        return f"signature {name!r} raises {reason_of(error)}"
    return ""


@check(needs="scores", decided_by="rows")
def latency(model: ModelUnderTest) -> Findings:
    """One example is scored within the contract's time, in the median.

    Clients wait. The median for one example is measured on the processors of the machine that
    checks; without `max_latency_ms` the report merely states it. Each signature that the contract
    names has to keep the time, or else the default one; none that changes variables beside it.

    Example: `ServingContract(max_latency_ms=5)` and a model of 12 ms.
    """
    served = [name for name in model.serving_signatures if name in model.scores]
    if not served:
        raise Skip("no signature was called")
    steady = [name for name in served if not model.signatures[name].assigns]
    main = "serving_default" if "serving_default" in served else [*steady, *served][0]
    budget = model.contract.max_latency_ms
    most_s = _SOME_SECONDS if budget is None else _MAX_SECONDS
    awaited = {main, *model.asked_for.intersection(steady)}
    for name in sorted(awaited) if budget is not None else [main]:
        median_ms = _median_ms(model, name, most_s)
        if name == main:
            model.facts["latency_ms"] = round(median_ms, 3)
        message = f"{name!r} takes {median_ms:.3g} ms for one example on this machine's CPU"
        yield _within(message, median_ms, budget, "ms", "max_latency_ms")


def _within(message: str, measured: float, budget: float | None, unit: str, field: str) -> Finding:
    if budget is None or measured <= budget:
        return note(message)
    return fail(
        f"{message}, the budget is {budget:g} {unit}",
        f"make the model smaller, move work into Transform, or raise {field}",
    )


@check(needs="scores", decided_by="rows")
def memory(model: ModelUnderTest) -> Findings:
    """Loading and scoring stays within the contract's memory.

    A server that loads more than it has is killed, with every other model that it serves. Without
    `max_memory_mb` the report merely states it.

    Example: `ServingContract(max_memory_mb=500)` and embeddings of 2 GB.
    """
    before_mb = model.memory_before_mb
    after_mb = resident_memory_mb()
    if before_mb is None or after_mb is None:
        raise Skip("resident memory cannot be read on this system")
    used_mb = max(after_mb - before_mb, 0.0)
    model.facts["memory_mb"] = round(used_mb, 1)
    did = "loading and scoring" if model.scores else "loading, without scoring a row,"
    message = f"{did} took {used_mb:.0f} MiB"
    yield _within(message, used_mb, model.contract.max_memory_mb, "MiB", "max_memory_mb")


def _median_ms(model: ModelUnderTest, name: str, most_s: float) -> float:
    example = model.scores[name].feed.take([0])
    taken: list[float] = []
    started = time.perf_counter()
    while len(taken) < _MAX_CALLS and time.perf_counter() - started < most_s:
        before = time.perf_counter()
        model.call(name, example)
        taken.append(1000 * (time.perf_counter() - before))
    return statistics.median(taken)


@check(after="eval_rehearsal", needs="loads devices", decided_by="rows")
def session(model: ModelUnderTest) -> Findings:
    """A graph session scores as the Python object does.

    BulkInferrer, TF Serving and every C++ server restore the variables that the checkpoint
    tracks and run the graph. `tf.saved_model.load` restores more than that. Other outputs are a
    warning for made-up rows that had to be tiny.

    Example: `tf.saved_model.save` on a Keras 3 model, whose variables the checkpoint does not
    track.
    """
    model.release()
    model.op_libraries  # noqa: B018 - imports on first use
    try:
        opened = open_session(str(model.directory))
    except Exception as error:
        yield fail(
            f"a tf.compat.v1.Session cannot load the model: {reason_of(error)}",
            "BulkInferrer and TF Serving load it this way: see the other failures first",
        )
        return
    with opened as running:
        for name in sorted(model.serving_signatures.keys() - model.scores.keys()):
            if untracked := _untracked(model, running, name):
                yield fail(f"signature {name!r}: {untracked}", _UNTRACKED_REMEDY)
        if not model.scores:
            yield note("a session loads the model; no row was scored, so that none is compared")
        for name, scores in model.scores.items():
            try:
                given = run_signature(running, model.signatures[name], scores.feed.inputs)
            except Exception as error:
                yield _session_failure(model, running, name, error)
                continue
            yield from _compare_with_session(model, name, given)


def _judge(model: ModelUnderTest, signature: str) -> Callable[[str, str], Finding]:
    return fail if signature in model.serving_signatures else warn


def _compare_with_session(model: ModelUnderTest, name: str, outputs: Outputs) -> Findings:
    signature = model.signatures[name]
    scores = model.scores[name]
    # Other calls have changed the variables of the loaded model.
    is_changed = any(model.signatures[scored].assigns for scored in model.scores)
    judge = warn if is_changed or is_tiny(scores.feed) else _judge(model, name)
    for key, value in sorted(outputs.items()):
        tensor = signature.outputs[key]
        subject = f"signature {name!r}: output {key!r}"
        if not fits(np.shape(value), tensor.shape):
            shape = list(np.shape(value))
            yield warn(
                f"{subject} is declared as {tensor}, a session gives the shape {shape}",
                "clients reshape by the declared shape: remove the wrong set_shape",
            )
        if key not in scores.batch:
            continue  # signature_tensors reports it
        changed, certain = scores.compared(key, value, scores.batch[key])
        if changed and certain and not scores.varies(key)[0]:
            yield judge(
                f"{subject}: a session gives {changed} from Python",
                "the two loaders restored different values: "
                "export again with generic_trainer.training.export_model",
            )


def _session_failure(model: ModelUnderTest, running: Any, name: str, error: Exception) -> Finding:
    judge = _judge(model, name)
    if untracked := _untracked(model, running, name):
        problem = f"{untracked}, though tf.saved_model.load does: {reason_of(error)}"
        return judge(f"signature {name!r}: {problem}", _UNTRACKED_REMEDY)
    return judge(
        f"signature {name!r} fails in a tf.compat.v1.Session: {reason_of(error)}",
        "BulkInferrer and TF Serving run it so: look at devices, fixed batch sizes, and tables "
        "that nothing initialises",
    )


def _untracked(model: ModelUnderTest, running: Any, name: str) -> str:
    """Returns which variables of a signature a session never restores, empty if there are none."""
    # Variables that the signature does not read, such as an optimizer's, do not matter.
    read = {node.name for node in model.signatures[name].nodes.values()}
    names = ", ".join(map(repr, uninitialized(running, read)[:8]))
    return f"a session never restores {names}, which are not tracked" if names else ""
