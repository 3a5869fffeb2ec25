"""Checks of signatures: their names, inputs and outputs."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from generic_trainer._core.texts import did_you_mean
from generic_trainer.validation._check import Findings, Skip, check, fail, note, warn
from generic_trainer.validation._contract import BULK_INFERRER, INFRA_VALIDATOR, SignatureSpec
from generic_trainer.validation._graph import Graph, node_name, tensors_of
from generic_trainer.validation._model import PREPROCESSING, ModelUnderTest
from generic_trainer.validation._scoring import ODD_ROWS
from generic_trainer.validation._signatures import Signature, Tensor, described, dims_of, fits

_SERIALIZED_REMEDY = (
    "export a serving_default that takes serialized tf.Examples as tf.TensorSpec([None], "
    "tf.string), e.g. with generic_trainer.training.export_model"
)
_DEFAULT = "serving_default"
# Dtypes that no request and no response can hold, and dtypes that JSON cannot.
_HANDLES = ("resource", "variant")
_NOT_IN_JSON = ("complex64", "complex128")
# Dtypes of outputs that the REST API of TF Serving cannot write; gRPC can.
_NOT_IN_REST = ("float16", "bfloat16", "uint16")


@check(after="served_by", needs="serve_tag", decided_by="code")
def signatures_exist(model: ModelUnderTest) -> Findings:
    """The model has a signature.

    Servers, BulkInferrer and Evaluator call signatures; a model without one loads, but cannot be
    called.

    Example: `tf.saved_model.save(module, directory)` of a `tf.Module` whose functions have no
    `input_signature`.
    """
    model.facts["signatures"] = list(model.signatures)
    if not model.signatures:
        yield fail(
            "the model has no signature (__saved_model_init_op does not count)",
            "pass signatures={'serving_default': ...} to the save call, "
            "or use generic_trainer.training.export_model",
        )


@check(needs="signatures_exist", decided_by="code")
def required_signatures(model: ModelUnderTest) -> Findings:
    """The model has the signatures that the contract names, or else `serving_default`.

    Consumers call a model by the name of a signature. If their configuration names none,
    BulkInferrer, TF Serving and the requests of an InfraValidator ask for `serving_default`; the
    Evaluator takes `predict` as well.

    Example: the export has `predict` alone, and a BulkInferrer reads it.
    `ServingContract(signatures=("predict",))` states that the consumers are configured to call it.
    """
    contract = model.contract
    actual = list(model.signatures)
    if missing := [spec.name for spec in contract.signature_specs if spec.name not in actual]:
        nearest = "".join(did_you_mean(name, actual) for name in missing)
        yield fail(
            f"expected the signatures {missing}, found {actual}{nearest}",
            "export it, or name others in ServingContract(signatures=...)",
        )
    if contract.signatures or _DEFAULT in actual:
        return
    if contract.only_evaluates and (contract.eval_config is not None or "predict" in actual):
        return  # the Evaluator finds another one, or eval_signatures reports the failure
    yield (fail if contract.is_read_by(BULK_INFERRER) else warn)(
        f"the model has no signature {_DEFAULT!r}, which consumers call by default: {actual}",
        f"export it; if all of them call another one: signatures=({actual[0]!r},)",
    )


@check(needs="required_signatures", decided_by="code")
def signature_specs(model: ModelUnderTest) -> Findings:
    """The signatures have the names, dtypes and shapes that the contract requires.

    A client is compiled against names, dtypes and shapes; another export may silently change any of
    them.

    Example: `SignatureSpec("serving_default", outputs={"score": "float32[None, 1]"})`, and the
    output is called `output_0`.
    """
    specs = [spec for spec in model.contract.signature_specs if spec.inputs or spec.outputs]
    if not specs:
        raise Skip("the contract requires no tensors")
    for spec in specs:
        signature = model.signatures[spec.name]
        for problem in _deviations(spec, signature):
            yield fail(
                f"signature {spec.name!r}: {problem}",
                "change the function behind the signature, or the contract",
            )
        for kind, name, tensor, expected in _expected(spec, signature):
            if "[" in expected and tensor.is_dense and tensor.shape is None:
                message = f"signature {spec.name!r}: {kind} {name!r} should be {expected}"
                yield warn(
                    f"{message}, and does not declare its shape",
                    "declare the shape: a tf.TensorSpec of an input, tf.ensure_shape of outputs",
                )


def _deviations(spec: SignatureSpec, signature: Any) -> Iterator[str]:
    if spec.inputs and set(spec.inputs) != set(signature.inputs):
        yield f"expected the inputs {sorted(spec.inputs)}, found {sorted(signature.inputs)}"
    if missing := sorted(set(spec.outputs) - set(signature.outputs)):
        yield f"expected the outputs {missing}, found {sorted(signature.outputs)}"
    for kind, name, tensor, expected in _expected(spec, signature):
        if not _is_as(expected, tensor):
            yield f"{kind} {name!r}: expected {expected}, found {tensor}"


def _expected(spec: SignatureSpec, signature: Signature) -> Iterator[tuple[str, str, Tensor, str]]:
    """Yields kind, name and tensor of what a spec has a requirement on, and the requirement."""
    for kind, name, tensor in signature.tensors:
        wanted = spec.inputs if kind == "input" else spec.outputs
        if name in wanted:
            yield kind, name, tensor, wanted[name]


def _is_as(expected: str, tensor: Tensor) -> bool:
    dtype, bracket, dims = expected.partition("[")
    if dtype.strip() != tensor.dtype.name:
        return False
    if not bracket or tensor.shape is None:
        return True
    listed = re.findall(r"None|-?\d+", dims)
    return [None if dim in ("None", "-1") else int(dim) for dim in listed] == tensor.shape


@check(needs="signatures_exist", decided_by="code")
def serialized_input(model: ModelUnderTest) -> Findings:
    """A signature takes serialized examples as one string input of shape [None].

    BulkInferrer wants exactly one input, which is a string; TF Serving's warm-up requests and
    InfraValidator want its shape to be exactly [None]. Unless the contract names signatures, a
    BulkInferrer calls `serving_default`, and no other signature replaces it.

    Example: a Keras model saved with its dense inputs, `serving_default(x: float32[None, 4])`.
    """
    inferred = inferred_signatures(model)
    signatures = inferred or model.serving_signatures
    if ["string[None]"] in [
        list(map(str, signature.inputs.values())) for signature in signatures.values()
    ]:
        return
    contract = model.contract
    wanted = contract.signatures and (
        not contract.consumers or contract.is_read_by(INFRA_VALIDATOR)
    )
    for name, signature in signatures.items():
        callers = "InfraValidator" if signature.is_serialized else "BulkInferrer and InfraValidator"
        message = (
            f"signature {name!r} takes {described(signature.inputs)}, not one string[None]; "
            f"{callers} cannot call it"
        )
        if inferred and not signature.is_serialized:
            yield fail(message, _SERIALIZED_REMEDY, may_be_meant=True)
        elif wanted:
            yield warn(message, _SERIALIZED_REMEDY)
        else:
            yield note(message)


def inferred_signatures(model: ModelUnderTest) -> dict[str, Signature]:
    """Returns the signatures that a BulkInferrer may call, none if there is no BulkInferrer."""
    if not model.contract.is_read_by(BULK_INFERRER):
        return {}
    named = {spec.name for spec in model.contract.signature_specs} or {_DEFAULT}
    signatures = model.serving_signatures  # also those that only the Evaluator calls
    called = {n: s for n, s in signatures.items() if n in named}
    return {n: s for n, s in called.items() if not n.startswith(PREPROCESSING)} or signatures


@check(needs="signatures_exist", decided_by="code")
def batch_dimension(model: ModelUnderTest) -> Findings:
    """The first dimension of every input is free, so that batches of any size fit.

    A signature with a fixed batch accepts other sizes when called from Python, and fails with
    them in the sessions that servers and BulkInferrer use.

    Example: `tf.TensorSpec([32], tf.string)` in the `input_signature`.
    """
    remedy = "trace the function with tf.TensorSpec([None, ...]) instead of a fixed size"
    yield from _unbatched(model, "input", remedy)


@check(after="scores", needs="loads signatures_exist", decided_by="rows")
def output_shape(model: ModelUnderTest) -> Findings:
    """The first dimension of every output is the batch: BulkInferrer and Evaluator split by it.

    A mean over the batch, or a constant among the outputs, has no row for the example it belongs
    to: BulkInferrer fails, and an Evaluator may score the wrong rows. If batches of two sizes gave
    a row for each example, the declared shape is wrong, which is a warning.

    Example: a signature that returns `{"loss": tf.reduce_mean(losses)}`.
    """
    remedy = "return one row per example, and neither a mean over the batch nor constants"
    yield from _unbatched(model, "output", remedy)


def _unbatched(model: ModelUnderTest, kind: str, remedy: str) -> Findings:
    for name, signature in model.serving_signatures.items():
        for its_kind, key, tensor in signature.tensors:
            if its_kind == kind and not tensor.is_batched:
                message = (
                    f"signature {name!r}: the first dimension of {kind} {key!r} should be None, "
                    f"found {tensor}"
                )
                finding = model.per_row(message, remedy)
                if kind == "output" and finding.status == "fail" and _has_rows(model, name, key):
                    message += "; it has one row per example"
                    finding = warn(message, "declare the shape that it has: remove the set_shape")
                yield finding


def _has_rows(model: ModelUnderTest, name: str, output: str) -> bool:
    """Whether batches of two sizes have given an output one row per example."""
    scored = model.scores.get(name)
    if scored is None or not scored.feed.divisible or not scored.has_rows(output):
        return False
    return len(np.atleast_1d(scored.odd[output])) == min(ODD_ROWS, scored.feed.rows) > 1


@check(after="batch_dimension", needs="signatures_exist", decided_by="code")
def signature_tensors(model: ModelUnderTest) -> Findings:
    """Inputs and outputs name tensors of the graph, of the dtypes that they declare.

    A signature is a list of names. Tools that edit graphs can leave names of removed tensors
    behind: such a model loads in Python, and fails with the first request.

    Example: a graph that was optimised after the export, in which `StatefulPartitionedCall:0` has
    no more outputs.
    """
    for name, signature in model.signatures.items():
        judge = fail if name in model.serving_signatures else warn
        for problem in _fed_twice(signature):
            yield judge(
                f"signature {name!r}: {problem}, which servers refuse",
                "give each input a separate tensor, and pass outputs through tf.identity",
            )
        for kind, key, tensor in signature.tensors:
            subject = f"signature {name!r}: {kind} {key!r}"
            named = tensors_of({key: tensor.info})
            try:
                dtypes = [model.graph.dtype_of(tensor_name) for tensor_name in named]
            except LookupError:
                dtypes = []
            if not dtypes:
                listed = ", ".join(map(repr, named)) or "no tensor"
                yield judge(
                    f"{subject} names {listed}, which is not in the graph",
                    "export again: servers feed and fetch tensors by these names",
                )
                continue
            problem = _conflict(model.graph, tensor) if kind == "input" else ""
            if not problem and tensor.is_dense and dtypes[0] not in (None, tensor.dtype):
                problem = dtypes[0].name
            if problem:
                # A wrong input is refused; a wrong output may be fine for a client.
                yield (judge if kind == "input" else warn)(
                    f"{subject} declares {tensor}, in the graph it is {problem}",
                    "declare what the graph has: clients send and expect what is declared",
                )


def _fed_twice(signature: Signature) -> Iterator[str]:
    """Yields inputs whose tensor another input, or an output, has as well."""
    fed: dict[str, str] = {}
    for kind, key, tensor in signature.tensors:
        name = tensor.info.name
        if name and name in fed:
            yield f"{kind} {key!r} is the tensor {name!r} of the input {fed[name]!r} too"
        elif kind == "input":
            fed[name] = key


def _conflict(graph: Graph, tensor: Tensor) -> str:
    """Returns the shape of a placeholder that the declared shape does not fit, else ""."""
    node = graph.placed.get(("", node_name(tensor.info.name)))
    if node is None or node.op != "Placeholder" or not tensor.is_dense or "shape" not in node.attr:
        return ""
    dims = dims_of(node.attr["shape"].shape)
    # TensorFlow 1 writes a shape without dimensions also if it knows none.
    return "" if not dims or fits(dims, tensor.shape) else str(dims)


@check(needs="signatures_exist", decided_by="code")
def signature_methods(model: ModelUnderTest) -> Findings:
    """Signatures to classify, regress and predict have the inputs and outputs of that method.

    TF Serving has separate calls for classification and regression, which look for `scores`,
    `classes` and `outputs` of fixed dtypes; a signature that declares such a method, and has other
    or further outputs, fails each such call.

    Example: method `tensorflow/serving/classify` with the output `scores` of int64.
    """
    judge = fail if model.contract.is_read_by(BULK_INFERRER) else warn
    for name, signature in model.serving_signatures.items():
        for problem in _method_problems(signature):
            method = signature.proto.method_name
            message = f"signature {name!r} has the method {method!r}: {problem}"
            yield judge(
                f"{message}; BulkInferrer and TF Serving refuse it",
                "build it with predict_signature_def, classification_signature_def or "
                "regression_signature_def of tf.compat.v1.saved_model",
            )


def _method_problems(signature: Signature) -> Iterator[str]:
    import tensorflow as tf

    # Method → its outputs of strings and of numbers; empty for any.
    methods: dict[str, dict[str, Any]] = {
        "tensorflow/serving/classify": {"classes": tf.string, "scores": tf.float32},
        "tensorflow/serving/regress": {"outputs": tf.float32},
        "tensorflow/serving/predict": {},
    }
    if (dtypes := methods.get(signature.proto.method_name)) is None:
        yield f"expected one of {', '.join(map(repr, methods))}"
        return
    if not signature.outputs:
        yield "it has no outputs"
    if not dtypes:
        return
    if list(signature.inputs) != ["inputs"] or not signature.is_serialized:
        yield f"expected one input 'inputs', of strings, found {sorted(signature.inputs)}"
    outputs = {name: signature.outputs[name] for name in dtypes if name in signature.outputs}
    if not outputs or len(signature.outputs) > len(dtypes):
        expected = " or ".join(map(repr, dtypes))
        yield f"expected the outputs {expected} alone, found {sorted(signature.outputs)}"
    dims = "[batch, classes]"
    shapes: list[list[int | None]] = [[None, None]]
    if "outputs" in dtypes:
        dims = "[batch] or [batch, 1]"
        shapes = [[None], [None, 1]]
    for name, tensor in outputs.items():
        is_right = any(fits(tensor.shape, shape) for shape in shapes)
        if tensor.dtype != dtypes[name] or not is_right:
            yield f"expected output {name!r} to be {dtypes[name].name} {dims}, found {tensor}"
    sizes = {tensor.shape[-1] for tensor in outputs.values() if tensor.shape} - {None}
    if len(sizes) > 1:
        yield f"expected as many classes as scores, found {sorted(sizes, key=str)}"


@check(needs="signatures_exist", decided_by="code")
def composite_tensors(model: ModelUnderTest) -> Findings:
    """Signatures take and return dense tensors; ragged and sparse ones cannot be served.

    Requests and responses are dense tensors. Ragged and sparse ones, and handles of resources, have
    no form in them; complex numbers, float16, bfloat16 and uint16 have none in responses by REST.
    BulkInferrer fails with ragged and sparse outputs, and with strings of shape [batch].

    Example: a signature that returns the result of `tf.strings.split` as it is.
    """
    inferred = inferred_signatures(model)
    for name, signature in model.serving_signatures.items():
        for kind, key, tensor in signature.tensors:
            dtype = tensor.dtype.name if tensor.is_dense else ""
            subject = f"signature {name!r}: {kind} {key!r} is"
            if dtype in _HANDLES:
                yield fail(
                    f"{subject} a handle of dtype {dtype}, which no request or response holds",
                    "return the values, and keep resources inside of the model",
                )
            elif dtype in _NOT_IN_JSON:
                yield warn(
                    f"{subject} {dtype}, which neither REST nor the Evaluator can take",
                    "return the real and the imaginary part",
                )
            elif kind == "output" and dtype in _NOT_IN_REST and model.contract.may_serve:
                yield warn(
                    f"{subject} {dtype}: TF Serving answers with an error by REST",
                    "cast it, or give the last layer dtype='float32'",
                )
            elif not dtype:
                yield (fail if name in inferred else warn)(
                    f"{subject} not a dense tensor; TF Serving and BulkInferrer fail with it",
                    "return .to_tensor(), or values and row lengths",
                )
            elif name in inferred and kind == "output" and str(tensor) == "string[None]":
                yield fail(
                    f"{subject} {tensor}; BulkInferrer fails with strings of one dimension",
                    "return tf.expand_dims(strings, 1)",
                    may_be_meant=True,
                )
