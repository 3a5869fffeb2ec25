"""Are there signatures, and those that the contract names?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail

__all__ = ["required_signatures", "signatures_exist"]


@check("signatures_exist", needs=("serve_tag",))
def signatures_exist(model: ModelUnderTest) -> Iterator[Finding]:
    """The model has a signature."""
    model.facts["signatures"] = list(model.signatures)
    if not model.signatures:
        yield fail(
            "the model has no signature (TensorFlow's own __saved_model_init_op does not count)",
            "pass signatures={'serving_default': ...} to the save call, or use "
            "generic_trainer.training.export_model",
        )


@check("required_signatures", needs=("signatures_exist",))
def required_signatures(model: ModelUnderTest) -> Iterator[Finding]:
    """The signatures that the contract names are there."""
    found = list(model.signatures)
    missing = [spec.name for spec in model.contract.signature_specs if spec.name not in found]
    if missing:
        yield fail(
            f"expected the signatures {missing}, found {found}",
            "export a signature with that name, or name the ones that the consumers use in "
            "ServingContract(signatures=...)",
        )
