"""Does a signature return what a server cannot send?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, warn
from generic_trainer.validation._tensors import is_dense

__all__ = ["composite_tensors"]


@check("composite_tensors", needs=("signatures_exist",))
def composite_tensors(model: ModelUnderTest) -> Iterator[Finding]:
    """Signatures take and return dense tensors; ragged and sparse ones cannot be served."""
    for name, signature in model.serving_signatures.items():
        for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
            for key, info in sorted(tensors.items()):
                if not is_dense(info):
                    yield warn(
                        f"signature {name!r}: {kind} {key!r} is not a dense tensor; TF Serving "
                        "and BulkInferrer cannot handle it",
                        "return .to_tensor() with a default value, or values and row lengths as "
                        "two outputs",
                    )
