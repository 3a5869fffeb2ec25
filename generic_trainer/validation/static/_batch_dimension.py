"""Can a signature take batches of any size?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail
from generic_trainer.validation._tensors import batched, describe_info

__all__ = ["batch_dimension"]


@check("batch_dimension", needs=("signatures_exist",))
def batch_dimension(model: ModelUnderTest) -> Iterator[Finding]:
    """The first dimension of every input is free, so that batches of any size fit.

    A signature with a fixed batch accepts other sizes when called from Python, and fails with
    them in the sessions that servers and BulkInferrer use.
    """
    for name, signature in model.serving_signatures.items():
        for key, info in sorted(signature.inputs.items()):
            if not batched(info):
                yield fail(
                    f"signature {name!r}: the first dimension of input {key!r} should be None, "
                    f"found {describe_info(info)}",
                    "trace the function with tf.TensorSpec([None, ...]) instead of a fixed size",
                )
