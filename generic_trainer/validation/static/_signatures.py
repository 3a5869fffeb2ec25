"""Are there signatures, and those that the contract names?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail

__all__ = ["signatures_exist"]


@check("signatures_exist", needs=("serve_tag",))
def signatures_exist(model: ModelUnderTest) -> Iterator[Finding]:
    """The model has signatures, and those that the contract names are among them."""
    found = list(model.signatures)
    model.facts["signatures"] = found
    missing = [spec.name for spec in model.contract.signature_specs if spec.name not in found]
    if not found:
        yield fail(
            "the model has no signature (TensorFlow's own __saved_model_init_op does not count)",
            "pass signatures={'serving_default': ...} to the save call, or use "
            "generic_trainer.training.export_model",
        )
    elif missing:
        yield fail(
            f"expected the signatures {missing}, found {found}",
            "export a signature with that name, or name the ones that the consumers use in "
            "ServingContract(signatures=...)",
        )
