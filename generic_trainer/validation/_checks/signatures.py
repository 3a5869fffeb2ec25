"""Checks of signatures: their names, and what they take and return."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from generic_trainer._core.texts import did_you_mean
from generic_trainer.validation._check import Finding, check, fail, note, per_row, skip, warn
from generic_trainer.validation._contract import SignatureSpec
from generic_trainer.validation._graph import node_name, tensors_of
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._signatures import (
    batched,
    describe_info,
    dtype_of,
    is_dense,
    is_serialized,
    shape_of,
    tensor_dtype,
)

_SERIALIZED_REMEDY = (
    "export a serving_default that takes serialized tf.Examples as tf.TensorSpec([None], "
    "tf.string), e.g. with generic_trainer.training.export_model; raw tensors can be a second "
    "signature"
)
# Of tensors that no request and no response can hold, and of those that JSON cannot.
_HANDLES = ("resource", "variant")
_NOT_IN_JSON = ("complex64", "complex128")


@check("signatures_exist", needs=("serve_tag",))
def signatures_exist(model: ModelUnderTest) -> Iterator[Finding]:
    """The model has a signature.

    Servers, BulkInferrer and Evaluator call signatures; a model without one loads, and cannot be
    asked.

    Example: `tf.saved_model.save(module, directory)` of a `tf.Module` whose functions have no
    `input_signature`.
    """
    model.facts["signatures"] = list(model.signatures)
    if not model.signatures:
        yield fail(
            "the model has no signature (TensorFlow's own __saved_model_init_op does not count)",
            "pass signatures={'serving_default': ...} to the save call, or use "
            "generic_trainer.training.export_model",
        )


@check("required_signatures", needs=("signatures_exist",))
def required_signatures(model: ModelUnderTest) -> Iterator[Finding]:
    """The signatures that the contract names are there.

    Who calls the model does so by the name of a signature. By default that is `serving_default`,
    which TF Serving, BulkInferrer and the Evaluator call where nothing else is said.

    Example: the export has `predict` alone. `ServingContract(signatures=("predict",))` asks for
    what there is.
    """
    actual = list(model.signatures)
    missing = [spec.name for spec in model.contract.signature_specs if spec.name not in actual]
    if missing:
        nearest = "".join(did_you_mean(name, actual) for name in missing)
        yield fail(
            f"expected the signatures {missing}, found {actual}{nearest}",
            "export a signature with that name, or name the ones that the consumers use in "
            "ServingContract(signatures=...)",
        )


@check("signature_specs", needs=("required_signatures",))
def signature_specs(model: ModelUnderTest) -> Iterator[Finding]:
    """The signatures have the names, dtypes and shapes that the contract requires.

    A client is compiled against names, dtypes and shapes; another export may change any of them
    without anybody noticing.

    Example: `SignatureSpec("serving_default", outputs={"score": "float32[None, 1]"})`, and the
    output is called `output_0`.
    """
    specs = [spec for spec in model.contract.signature_specs if spec.inputs or spec.outputs]
    if not specs:
        yield skip("the contract requires no tensors")
    for spec in specs:
        for problem in _deviations(spec, model.signatures[spec.name]):
            yield fail(
                f"signature {spec.name!r}: {problem}",
                "change the function behind the signature, or the contract if the consumers "
                "have changed",
            )


def _deviations(spec: SignatureSpec, signature: Any) -> Iterator[str]:
    if spec.inputs and set(spec.inputs) != set(signature.inputs):
        yield f"expected the inputs {sorted(spec.inputs)}, found {sorted(signature.inputs)}"
    missing = sorted(set(spec.outputs) - set(signature.outputs))
    if missing:
        yield f"expected the outputs {missing}, found {sorted(signature.outputs)}"
    for kind in ("input", "output"):
        expected, infos = getattr(spec, f"{kind}s"), getattr(signature, f"{kind}s")
        for name in sorted(set(expected) & set(infos)):
            if not _fits(expected[name], infos[name]):
                found = describe_info(infos[name])
                yield f"{kind} {name!r}: expected {expected[name]}, found {found}"


def _fits(expected: str, info: Any) -> bool:
    dtype, bracket, dims = expected.partition("[")
    if dtype.strip() != dtype_of(info).name:
        return False
    shape = shape_of(info)
    if not bracket or shape is None:
        return True
    listed = re.findall(r"None|-?\d+", dims)
    return [None if dim in ("None", "-1") else int(dim) for dim in listed] == shape


@check("serialized_input", needs=("signatures_exist",))
def serialized_input(model: ModelUnderTest) -> Iterator[Finding]:
    """A signature takes serialized examples as one string input of shape [None].

    BulkInferrer wants exactly one input, which is a string; TF Serving's warm-up requests and
    InfraValidator want its shape to be exactly [None].

    Example: a Keras model saved with its dense inputs, `serving_default(x: float32[None, 4])`.
    """
    problems = [_why_unserialized(name, item) for name, item in model.serving_signatures.items()]
    if not problems or None in problems:
        return
    for problem in problems:
        if model.contract.infers_in_bulk:
            yield Finding(
                "fail",
                f"{problem}, which is all that a BulkInferrer feeds",
                _SERIALIZED_REMEDY,
                may_be_meant=True,
            )
        elif model.contract.signatures:  # somebody said which ones the consumers use
            yield warn(
                f"{problem}; BulkInferrer and InfraValidator cannot call it",
                _SERIALIZED_REMEDY,
            )
        else:
            yield note(f"{problem}: fine for a server, not for BulkInferrer and InfraValidator")


def _why_unserialized(name: str, signature: Any) -> str | None:
    import tensorflow as tf

    infos = signature.inputs.values()
    if [(dtype_of(info), shape_of(info)) for info in infos] == [(tf.string, [None])]:
        return None
    listed = ", ".join(f"{key}: {describe_info(v)}" for key, v in sorted(signature.inputs.items()))
    return f"signature {name!r} takes ({listed}) instead of one string[None]"


@check("batch_dimension", needs=("signatures_exist",))
def batch_dimension(model: ModelUnderTest) -> Iterator[Finding]:
    """The first dimension of every input is free, so that batches of any size fit.

    A signature with a fixed batch accepts other sizes when called from Python, and fails with
    them in the sessions that servers and BulkInferrer use.

    Example: `tf.TensorSpec([32], tf.string)` in the `input_signature`.
    """
    for name, signature in model.serving_signatures.items():
        for key, info in sorted(signature.inputs.items()):
            if not batched(info):
                yield per_row(
                    model,
                    f"signature {name!r}: the first dimension of input {key!r} should be None, "
                    f"found {describe_info(info)}",
                    "trace the function with tf.TensorSpec([None, ...]) instead of a fixed size",
                )


@check("output_shape", needs=("signatures_exist",))
def output_shape(model: ModelUnderTest) -> Iterator[Finding]:
    """The first dimension of every output is the batch: BulkInferrer and Evaluator split by it.

    A mean over the batch, or a constant among the outputs, has no row for the example it belongs
    to: BulkInferrer fails, and an Evaluator may score the wrong rows.

    Example: a signature that returns `{"loss": tf.reduce_mean(losses)}`.
    """
    for name, signature in model.serving_signatures.items():
        for key, info in sorted(signature.outputs.items()):
            if not batched(info):
                yield per_row(
                    model,
                    f"signature {name!r}: the first dimension of output {key!r} should be the "
                    f"batch, found {describe_info(info)}",
                    "return one row per example, e.g. [batch, 1] and not a mean over the batch; "
                    "leave constants out of the signature's outputs",
                )


@check("signature_tensors", needs=("signatures_exist",))
def signature_tensors(model: ModelUnderTest) -> Iterator[Finding]:
    """Inputs and outputs name tensors of the graph, of the dtypes that they declare.

    A signature is a list of names. Tools that edit graphs can leave names behind that lead nowhere,
    which loads in Python, and fails with the first request.

    Example: a graph that was optimised after the export, in which `StatefulPartitionedCall:0` has
    no more outputs.
    """
    graph = model.meta_graph.graph_def
    nodes = {node.name: node for node in graph.node}
    library = {function.signature.name: function for function in graph.library.function}
    for name, signature in model.signatures.items():
        judge = fail if name in model.serving_signatures else warn
        for told in _fed_twice(signature):
            yield judge(
                f"signature {name!r}: {told}",
                "servers refuse to feed a tensor twice, or to fetch what they feed: give each "
                "input a tensor of its own, and pass outputs through tf.identity",
            )
        for kind, infos in (("input", signature.inputs), ("output", signature.outputs)):
            for key, info in sorted(infos.items()):
                subject = f"signature {name!r}: {kind} {key!r}"
                tensors = list(filter(None, tensors_of(info)))
                try:
                    found = [tensor_dtype(nodes, library, tensor) for tensor in tensors]
                except LookupError:
                    found = []
                if not found:
                    named = ", ".join(map(repr, tensors)) or "no tensor"
                    yield judge(
                        f"{subject} names {named}, which is not in the graph",
                        "servers feed and fetch tensors by these names: export again, or let the "
                        "signature follow what has renamed the graph's nodes",
                    )
                elif kind == "input" and (shape := _conflict(nodes, info)):
                    yield judge(
                        f"{subject} declares {describe_info(info)}, in the graph it is {shape}",
                        "clients send what the signature declares: declare the graph's own shape",
                    )
                elif is_dense(info) and found[0] not in (None, dtype_of(info)):
                    # What comes in is refused; what goes out, a client may mind or not.
                    yield (judge if kind == "input" else warn)(
                        f"{subject} declares {dtype_of(info).name}, in the graph it is "
                        f"{found[0].name}",
                        "clients send and expect what the signature declares: declare the graph's "
                        "own dtype",
                    )


def _fed_twice(signature: Any) -> Iterator[str]:
    """Yields which inputs have a tensor that another input, or an output, has as well."""
    fed: dict[str, str] = {}
    for key, info in sorted(signature.inputs.items()):
        if info.name and info.name in fed:
            yield f"the inputs {fed[info.name]!r} and {key!r} are the same tensor {info.name!r}"
        fed.setdefault(info.name, key)
    for key, info in sorted(signature.outputs.items()):
        if info.name and info.name in fed:
            yield f"output {key!r} is the tensor of the input {fed[info.name]!r}"


def _conflict(nodes: Mapping[str, Any], info: Any) -> str:
    """Returns the shape of a placeholder, where a tensor as declared does not fit; "" elsewhere."""
    node = nodes.get(node_name(info.name))
    declared = shape_of(info)
    if node is None or node.op != "Placeholder" or declared is None or not is_dense(info):
        return ""
    if "shape" not in node.attr or node.attr["shape"].shape.unknown_rank:
        return ""
    dims = [None if dim.size < 0 else dim.size for dim in node.attr["shape"].shape.dim]
    fits = len(dims) == len(declared) and all(
        None in pair or pair[0] == pair[1] for pair in zip(dims, declared, strict=True)
    )
    # A shape of no dimensions is also what TensorFlow 1 writes where it knows none.
    return "" if fits or not dims else str(dims)


@check("signature_methods", needs=("signatures_exist",))
def signature_methods(model: ModelUnderTest) -> Iterator[Finding]:
    """Signatures to classify, regress and predict have the inputs and outputs that this takes.

    TF Serving has calls of its own for classification and regression, which look for `scores`,
    `classes` and `outputs` of fixed dtypes; a signature that says it can be classified, and has
    other outputs, fails each such call.

    Example: method `tensorflow/serving/classify` with the output `scores` of int64.
    """
    judge = fail if model.contract.infers_in_bulk else warn
    for name, signature in model.serving_signatures.items():
        for problem in _method_problems(signature):
            yield judge(
                f"signature {name!r} has the method {signature.method_name!r}: {problem}; "
                "BulkInferrer refuses it, and TF Serving by that API",
                "build it with tf.compat.v1.saved_model's classification_signature_def, "
                "regression_signature_def or predict_signature_def",
            )


def _method_problems(signature: Any) -> Iterator[str]:
    import tensorflow as tf

    constants = tf.compat.v1.saved_model
    needed = {
        constants.CLASSIFY_METHOD_NAME: (
            constants.CLASSIFY_INPUTS,
            {constants.CLASSIFY_OUTPUT_CLASSES, constants.CLASSIFY_OUTPUT_SCORES},
        ),
        constants.REGRESS_METHOD_NAME: (constants.REGRESS_INPUTS, {constants.REGRESS_OUTPUTS}),
        constants.PREDICT_METHOD_NAME: (None, None),
    }
    if signature.method_name not in needed:
        yield f"expected one of {', '.join(map(repr, needed))}"
        return
    if not signature.outputs:
        yield "it has no outputs"
    key, outputs = needed[signature.method_name]
    if key is not None and (list(signature.inputs) != [key] or not is_serialized(signature)):
        yield f"expected one input {key!r}, of strings, found {sorted(signature.inputs)}"
    if outputs is not None and not signature.outputs.keys() & outputs:
        expected = " or ".join(map(repr, sorted(outputs)))
        yield f"expected an output {expected}, found {sorted(signature.outputs)}"
    dtypes = {constants.CLASSIFY_OUTPUT_CLASSES: tf.string}
    ranks = (1, 2) if key == constants.REGRESS_INPUTS and outputs == {"outputs"} else (2,)
    for output in sorted(signature.outputs.keys() & (outputs or set())):
        info, dtype = signature.outputs[output], dtypes.get(output, tf.float32)
        shape = shape_of(info)
        if dtype_of(info) != dtype or (shape is not None and not _is_of_method(shape, ranks)):
            dims = "[batch] or [batch, 1]" if 1 in ranks else "[batch, classes]"
            found = describe_info(info)
            yield f"expected output {output!r} to be {dtype.name} {dims}, found {found}"
    sizes = [
        shape[-1]
        for output, info in sorted(signature.outputs.items())
        if outputs and output in outputs and (shape := shape_of(info)) and shape[-1] is not None
    ]
    if len(set(sizes)) > 1:
        yield f"expected as many classes as scores, found {sizes}"


def _is_of_method(shape: list[int | None], ranks: tuple[int, ...]) -> bool:
    """Whether an output has a row for each example; of a regression, with one number in it."""
    return len(shape) in ranks and (1 not in ranks or shape[1:] in ([], [1], [None]))


@check("composite_tensors", needs=("signatures_exist",))
def composite_tensors(model: ModelUnderTest) -> Iterator[Finding]:
    """Signatures take and return dense tensors; ragged and sparse ones cannot be served.

    Requests and responses are dense tensors. Ragged and sparse ones, and handles of resources, have
    no form in them.

    Example: a signature that returns the result of `tf.strings.split` as it is.
    """
    for name, signature in model.serving_signatures.items():
        for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
            for key, info in sorted(tensors.items()):
                dtype = dtype_of(info).name if is_dense(info) else ""
                subject = f"signature {name!r}: {kind} {key!r}"
                if dtype in _HANDLES:
                    yield fail(
                        f"{subject} is a handle of dtype {dtype}, which no request and no response "
                        "can hold",
                        "return the values themselves, and keep resources inside of the model",
                    )
                elif dtype in _NOT_IN_JSON:
                    yield warn(
                        f"{subject} is {dtype}: TF Serving answers with an error by REST, and the "
                        "Evaluator has no metric for it",
                        "return the real and the imaginary part, or absolute value and angle",
                    )
                if not is_dense(info):
                    yield warn(
                        f"{subject} is not a dense tensor; TF Serving "
                        "and BulkInferrer cannot handle it",
                        "return .to_tensor() with a default value, or values and row lengths as "
                        "two outputs",
                    )
