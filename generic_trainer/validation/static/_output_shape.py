"""Is there one row of output per row of input?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail
from generic_trainer.validation._tensors import batched, describe_info

__all__ = ["output_shape"]


@check("output_shape", needs=("signatures_exist",))
def output_shape(model: ModelUnderTest) -> Iterator[Finding]:
    """The first dimension of every output is the batch: BulkInferrer and Evaluator split by it."""
    for name, signature in model.serving_signatures.items():
        for key, info in sorted(signature.outputs.items()):
            if not batched(info):
                yield fail(
                    f"signature {name!r}: the first dimension of output {key!r} should be the "
                    f"batch, found {describe_info(info)}",
                    "return one row per example, e.g. [batch, 1] and not a mean over the batch; "
                    "leave constants out of the signature's outputs",
                )
