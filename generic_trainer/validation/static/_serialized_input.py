"""Can TFX's own consumers, which hold serialized examples, feed the model?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, note, warn
from generic_trainer.validation._tensors import describe_info, dtype_of, shape_of

__all__ = ["serialized_input"]

_REMEDY = (
    "export a serving_default that takes serialized tf.Examples as tf.TensorSpec([None], "
    "tf.string), e.g. with generic_trainer.training.export_model; raw tensors can be a second "
    "signature"
)


@check("serialized_input", needs=("signatures_exist",))
def serialized_input(model: ModelUnderTest) -> Iterator[Finding]:
    """A signature takes serialized examples as one string input of shape [None].

    BulkInferrer wants exactly one input, which is a string; TF Serving's warm-up requests and
    InfraValidator want its shape to be exactly [None].
    """
    problems = [_problem(name, item) for name, item in model.serving_signatures.items()]
    if not problems or None in problems:
        return
    for problem in problems:
        if model.has_contract:
            yield warn(f"{problem}; BulkInferrer and InfraValidator cannot call it", _REMEDY)
        else:
            yield note(f"{problem}: fine for a server, not for BulkInferrer and InfraValidator")


def _problem(name: str, signature: Any) -> str | None:
    import tensorflow as tf

    listed = ", ".join(f"{key}: {describe_info(v)}" for key, v in sorted(signature.inputs.items()))
    if len(signature.inputs) == 1:
        (info,) = signature.inputs.values()
        if dtype_of(info) == tf.string and shape_of(info) == [None]:
            return None
    return f"signature {name!r} takes ({listed}) instead of one string[None]"
