"""Which features are labels?"""

from __future__ import annotations

from generic_trainer.validation._model import ModelUnderTest

__all__ = ["label_keys"]


def label_keys(model: ModelUnderTest) -> set[str]:
    """Returns the labels that the contract names, or that its eval config does."""
    keys = set(model.contract.label_keys)
    if not keys and model.contract.eval_config is not None:
        for spec in model.eval_config.model_specs:
            keys.update([spec.label_key] if spec.label_key else [], spec.label_keys.values())
    return keys
