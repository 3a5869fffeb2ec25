"""Is the Evaluator's config right for the examples?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, skip
from generic_trainer.validation._tfma_features import feature_dtypes
from generic_trainer.validation._tfma_lint import lint_findings

__all__ = ["eval_config"]


@check("eval_config", needs=("inputs_read",))
def eval_config(model: ModelUnderTest) -> Iterator[Finding]:
    """Labels, weights, slices, metrics and thresholds of the eval config make sense."""
    if model.eval_config is None:
        yield skip("the contract names no eval config")
        return
    features = feature_dtypes(model)
    known = None if features is None else {*features, *_preprocessed(model)}
    yield from lint_findings(model.eval_config, known)


def _preprocessed(model: ModelUnderTest) -> Iterator[str]:
    """The features that the model's own preprocessing signatures return."""
    for spec in model.eval_config.model_specs:
        for name in spec.preprocessing_function_names:
            if name in model.signatures:
                yield from model.signatures[name].outputs
