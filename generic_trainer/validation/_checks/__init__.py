"""All checks, in the order in which they run: what is cheap and fundamental comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from generic_trainer.validation._check import Check
from generic_trainer.validation._checks import (
    baseline,
    evaluator,
    examples,
    features,
    files,
    formats,
    graph,
    parity,
    predictions,
    probing,
    serving,
    signatures,
    state,
)
from generic_trainer.validation._model import ModelUnderTest

__all__ = ["all_checks", "checks_for"]

# They read the files of a model in any format and load nothing.
_FILES_OF_ANY_FORMAT: tuple[Check, ...] = (
    files.presence,
    files.inputs_read,
    files.manifest_matches,
    formats.other_formats,
    formats.embedded_code,
    formats.format_consumers,
    formats.format_inputs,
)
_ANY_FORMAT: tuple[Check, ...] = (files.presence, files.manifest_matches)
# Of an export that is no SavedModel.
_OTHER_FORMATS: tuple[Check, ...] = (
    *_FILES_OF_ANY_FORMAT,
    parity.format_scores,
    parity.parity,
)
# They read the files of a model and load nothing.
_STATIC: tuple[Check, ...] = (
    *_FILES_OF_ANY_FORMAT,
    files.leftovers,
    files.parses,
    files.fingerprint_matches,
    graph.serve_tag,
    graph.tensorflow_version,
    signatures.signatures_exist,
    signatures.required_signatures,
    signatures.signature_specs,
    signatures.serialized_input,
    signatures.batch_dimension,
    signatures.output_shape,
    signatures.signature_tensors,
    signatures.signature_methods,
    signatures.composite_tensors,
    features.schema_features,
    features.label_inputs,
    graph.unregistered_ops,
    graph.denied_ops,
    graph.python_ops,
    graph.file_ops,
    graph.absolute_paths,
    graph.devices,
    graph.compiled_functions,
    files.assets,
    features.vocabularies,
    files.variables_read,
    files.variables_finite,
    evaluator.eval_config,
    evaluator.eval_signatures,
)
# They load the model and call it.
_DYNAMIC: tuple[Check, ...] = (
    serving.loads,
    predictions.scores,
    predictions.output_per_row,
    predictions.outputs_finite,
    predictions.outputs_vary,
    predictions.deterministic,
    predictions.row_independence,
    examples.golden,
    examples.without_label,
    serving.warmup,
    serving.latency,
    serving.memory,
    probing.eval_rows,
    probing.without_optional,
    probing.schema_rows,
    probing.observed_rows,
    probing.batch_sizes,
    probing.unforeseen_rows,
    state.state_growth,
    parity.format_scores,
    parity.parity,
    evaluator.eval_rehearsal,
    serving.session,
    baseline.base_model,
)


def all_checks() -> tuple[Check, ...]:
    """Returns every check, in the order in which they run on a SavedModel."""
    return _STATIC + _DYNAMIC


def checks_for(model: ModelUnderTest, done: Mapping[str, str]) -> Iterator[Check]:
    """Yields the checks for what an export is, or for the format that the contract names.

    Args:
        model: what is checked.
        done: check → its outcome, of those that have run; it grows on the way.
    """
    first = files.presence
    yield first  # it looks into the files, which may end the process
    checks = all_checks()
    if model.contract.format == "any":
        checks = _ANY_FORMAT
    elif done[first.name] != "fail" and model.is_other_format:
        checks = _OTHER_FORMATS
    yield from (each for each in checks if each is not first)
