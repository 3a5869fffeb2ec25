"""Checks of TFLite models, beside a SavedModel or instead of one."""

from collections.abc import Generator
from pathlib import Path

from generic_trainer._core.texts import reason_of
from generic_trainer.validation._check import (
    FORMATS,
    Finding,
    Findings,
    Skip,
    check,
    fail,
    note,
    untested,
    warn,
)
from generic_trainer.validation._contract import BULK_INFERRER, INFRA_VALIDATOR
from generic_trainer.validation._feeds import feed_for
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._scoring import not_finite
from generic_trainer.validation._signatures import Signature
from generic_trainer.validation._tflite import TFLiteModel

_TFMA_FILE = "tflite"  # the only file that TFMA reads for model_type "tf_lite"
_LOADS_SAVED_MODELS = "it loads a SavedModel: export one as well, or remove the component"


@check(after="manifest_matches", needs="presence", formats=FORMATS)
def other_formats(model: ModelUnderTest) -> Findings:
    """Every TFLite model is whole, and its ops reach no files.

    TFX's Rewriter writes TFLite beside or instead of a SavedModel; the Pusher copies a truncated
    file without a look at it. The ops of TensorFlow that a TFLite model may have could read or
    write files of any device that runs it; such a model is not loaded here.

    Example: a `.tflite` file of half its length.
    """
    if not model.tflite_models:
        raise Skip("no file is a TFLite model")
    for lite in model.tflite_models:
        refused = [op for op in lite.reaching_ops if op not in model.contract.allowed_ops]
        if lite.problem:
            # Beside a SavedModel, a file's name alone promises nothing.
            remedy = "write the file again, and copy all of it; delete it if it is not a model"
            judge = warn if model.is_saved_model else fail
            yield judge(f"{lite.path}: {lite.problem}", remedy, may_be_meant=True)
        elif refused:
            yield fail(
                f"{lite.path} reaches files or the network with {', '.join(refused)}",
                f"set ServingContract(allowed_ops=({refused[0]!r},)) if it may",
            )
        elif lite.may_run:
            yield note(str(lite))


@check(needs="presence", formats=FORMATS, decided_by="code")
def format_consumers(model: ModelUnderTest) -> Findings:
    """Every consumer that the pipeline names can read a model without a SavedModel.

    BulkInferrer and InfraValidator load SavedModels only; without this check they would fail after
    the training has been paid for.

    Example: a pickle or `tflite` alone in the export, and a BulkInferrer in the pipeline.
    """
    if not model.other_format:
        raise Skip("the export is a SavedModel")
    kinds = ", ".join(map(str, model.other_format))
    for name, kind in (("BulkInferrer", BULK_INFERRER), ("InfraValidator", INFRA_VALIDATOR)):
        if model.contract.is_read_by(kind):
            yield fail(f"{name} cannot read {kinds}", _LOADS_SAVED_MODELS)
    if not model.contract.evaluates:
        return
    config = model.evidence.eval_config
    types = {spec.model_type for spec in config.model_specs} if config is not None else set()
    is_there = Path(_TFMA_FILE) in model.files
    if "tf_lite" in types and not is_there:
        yield fail(
            f"model_type 'tf_lite' reads the file {_TFMA_FILE!r}, and the export has {kinds}",
            f"write the model to fn_args.serving_model_dir/{_TFMA_FILE}",
        )
    elif not any(types) and not (config is None and is_there):
        is_lite = {lite.path for lite in model.tflite_models}.intersection(model.other_format)
        how = "model_type 'tf_lite' in its eval config" if is_lite else "a custom_eval_shared_model"
        yield warn(
            f"an Evaluator reads {kinds} only with {how}",
            "check the Evaluator's eval config, or its custom_eval_shared_model",
        )


@check(after="state_growth", needs="other_formats inputs_read", formats=FORMATS)
def format_scores(model: ModelUnderTest) -> Findings:
    """TFLite models score rows, without NaN.

    A file that is whole may still fail with its first row, so it is run on rows of the eval split.

    Example: a TFLite model with an op that no interpreter has, or that gives NaN after
    quantisation.
    """
    runnable = [lite for lite in model.tflite_models if lite.may_run]
    if not runnable:
        raise Skip("no TFLite model that can be run here")
    rows = 0
    for lite in runnable:
        if not lite.signatures:
            yield untested(f"{lite.path} has no signature, so that it is not run")
        for name, signature in lite.signatures.items():
            rows += yield from _scored(model, lite, name, signature)
    if not rows:
        raise Skip("nothing to test: no row was scored")
    if not model.is_saved_model:
        model.facts["rows_scored"] = rows


def _scored(
    model: ModelUnderTest, tflite: TFLiteModel, name: str, signature: Signature
) -> Generator[Finding, None, int]:
    """Yields findings, and returns the number of rows that were scored."""
    feed = feed_for(model, signature, model.evidence.records)
    if feed is None:
        return 0
    judge = fail if feed.real and not model.is_saved_model else warn
    subject = f"{tflite.path}, {name!r}"
    try:
        outputs = tflite.run(name, feed.inputs)
    except Exception as error:
        reason = reason_of(error)
        if "custom op" in reason or "Flex" in reason:  # other interpreters may have them
            yield untested(
                f"{subject} is not run: TensorFlow's interpreter lacks its ops: {reason}"
            )
        else:
            yield judge(
                f"{subject} with {feed.source}: {reason}",
                "consumers see this error for such rows; real ones: ServingContract(examples=)",
            )
        return 0
    for kind, key, _ in not_finite(outputs):
        if kind == "NaN":
            yield judge(
                f"{subject}: output {key!r} has NaN for {feed.source}",
                "look for numbers beyond the range of float16 or int8",
            )
    yield note(f"{subject} scored {feed.rows} rows of {feed.source}")
    return feed.rows
