"""Do the signatures have the tensors that the contract asks for?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from generic_trainer.validation._check import check
from generic_trainer.validation._contract import SignatureSpec
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, skip
from generic_trainer.validation._tensors import describe_info, dtype_of, shape_of

__all__ = ["signature_specs"]


@check("signature_specs", needs=("required_signatures",))
def signature_specs(model: ModelUnderTest) -> Iterator[Finding]:
    """The signatures have the names, dtypes and shapes that the contract requires."""
    specs = [spec for spec in model.contract.signature_specs if spec.inputs or spec.outputs]
    if not specs:
        yield skip("the contract requires no tensors")
    for spec in specs:
        for problem in _problems(spec, model.signatures[spec.name]):
            yield fail(
                f"signature {spec.name!r}: {problem}",
                "change the function behind the signature, or the contract if the consumers "
                "have changed",
            )


def _problems(spec: SignatureSpec, signature: Any) -> Iterator[str]:
    if spec.inputs and set(spec.inputs) != set(signature.inputs):
        yield f"expected the inputs {sorted(spec.inputs)}, found {sorted(signature.inputs)}"
    missing = sorted(set(spec.outputs) - set(signature.outputs))
    if missing:
        yield f"expected the outputs {missing}, found {sorted(signature.outputs)}"
    yield from _mismatches("input", spec.inputs, signature.inputs)
    yield from _mismatches("output", spec.outputs, signature.outputs)


def _mismatches(kind: str, wanted: Mapping[str, str], found: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(set(wanted) & set(found)):
        if not _fits(wanted[name], found[name]):
            yield f"{kind} {name!r}: expected {wanted[name]}, found {describe_info(found[name])}"


def _fits(wanted: str, info: Any) -> bool:
    dtype, bracket, dims = wanted.partition("[")
    if dtype.strip() != dtype_of(info).name:
        return False
    shape = shape_of(info)
    if not bracket or shape is None:
        return True
    listed = re.findall(r"None|-?\d+", dims)
    return [None if dim in ("None", "-1") else int(dim) for dim in listed] == shape
