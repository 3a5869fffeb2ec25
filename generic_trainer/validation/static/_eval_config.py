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
    known = None if features is None else features.keys()
    yield from lint_findings(model.eval_config, known, _preprocessed(model))


def _preprocessed(model: ModelUnderTest) -> set[str] | None:
    """Returns what the preprocessing functions return; None unless all are signatures."""
    specs = model.eval_config.model_specs
    functions = {name for spec in specs for name in spec.preprocessing_function_names}
    if not functions <= model.signatures.keys():
        return None
    return {output for name in functions for output in model.signatures[name].outputs}
