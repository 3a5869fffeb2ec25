"""The contract of a run, completed from its inputs, and a rehearsal before the training.

A rehearsal checks the export of an untrained model. Only `export_fn` is called; a module without
one is not rehearsed.

A false alarm would cost the run. So by default a rehearsal rejects only failures that the code
decides and training cannot change. Failures that untrained weights, unadapted vocabularies or an
`export_fn` that needs a checkpoint may cause are logged.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from generic_trainer import errors
from generic_trainer._core import tfx_names
from generic_trainer._core.files import gfile
from generic_trainer._core.progress import recording
from generic_trainer._core.texts import load_schema
from generic_trainer.launchers import Distribution, Job, TrainingRequest, launch
from generic_trainer.user_code import defines_function
from generic_trainer.validation import Checker, ServingContract, ValidationReport, all_checks

# Type of a schema's feature → the list that holds it in an example.
_KINDS = {1: "bytes_list", 2: "int64_list", 3: "float_list"}
_EXAMPLES = 100  # that show the features
_EXPORT_FN = "export_fn"
_REHEARSAL_DIR = "rehearsal"
_TIMEOUT_S = 120.0  # of `export_fn`, if the contract does not ask for it
_ABLE_TO_SCORE = frozenset({"scores", "outputs_finite"})

_logger = logging.getLogger(__name__)


def derived_contract(request: TrainingRequest) -> ServingContract:
    """Returns the contract of the run, completed from its inputs.

    Fields that the user's contract leaves empty come from elsewhere: eval examples, their
    statistics, the schema, the base model and the eval config from the component's inputs, and
    consumers from the pipeline.

    Behind Transform the examples are the raw ones, because Evaluator and servers send those: the
    examples that the transform graph was made from, or the extra input `raw_examples`.

    Raises:
        DataError: the eval examples cannot be read.
    """
    contract = request.contract or ServingContract(signatures=())
    if contract.format == "any":
        return contract
    graph = request.transform_graph_path
    schema = request.schema_path
    derived = {
        **({} if contract.examples else _examples(request)),
        "schema": schema if graph is None else os.path.join(graph, tfx_names.RAW_SCHEMA),
        "statistics": request.statistics_path,
        "transform_graph": graph,
        "base_model": request.base_model,
        "eval_config": request.eval_config,
        "consumers": request.consumers,
    }
    return dataclasses.replace(
        contract, **{name: value for name, value in derived.items() if not getattr(contract, name)}
    )


def _examples(request: TrainingRequest) -> dict[str, Any]:
    if not (request.examples_format.is_tf_example and request.eval_files):
        return {}
    from generic_trainer._core.records import hold_no_record  # it imports TensorFlow

    filled = (pattern for pattern in request.eval_files if not hold_no_record(pattern))
    pattern = next(filled, None)
    if pattern is None:
        named = ", ".join(request.eval_files)
        _logger.warning("%s has no examples: the checks score made-up rows, or none", named)
        return {}
    if not _transformed(request, pattern):
        return {"examples": pattern}
    split_and_files = pattern.split(os.sep)[-2:]
    wanted = request.extra_inputs.get(tfx_names.RAW_EXAMPLES, ())
    patterns = [os.path.join(uri, *split_and_files) for uri in wanted or request.raw_examples]
    found = [raw for raw in patterns if gfile().glob(raw)]  # they may be deleted by now
    if found or wanted:
        return {"examples": (found or patterns)[0]}
    return {"examples": pattern, "examples_transformed": True}


def _transformed(request: TrainingRequest, pattern: str) -> bool:
    """Whether the examples are the output of the transform graph rather than its input.

    Raw features can have the names of transformed ones. If they have the same dtypes too, only the
    directory shows that they are raw.
    """
    if request.transform_graph_path is None:
        return False
    if any(pattern.startswith(os.path.join(uri, "")) for uri in request.raw_examples):
        return False
    schema = load_schema(os.path.join(request.transform_graph_path, tfx_names.TRANSFORMED_SCHEMA))
    kinds = {feature.name: _KINDS.get(feature.type, "") for feature in schema.feature}
    return all(
        name in kinds and (kinds_found <= {kinds[name]} or not kinds[name])
        for name, kinds_found in features_of(pattern).items()
    )


def features_of(examples: str | Sequence[bytes]) -> dict[str, set[str]]:
    """Returns feature → the kinds of its lists in the first examples, without empty ones.

    Args:
        examples: a pattern of TFRecord files, or serialized examples.

    Raises:
        DataError: they cannot be read.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    from generic_trainer._core.records import read_records

    try:
        examples_read = [
            tf.train.Example.FromString(record) for record in read_records(examples, _EXAMPLES)
        ]
    except DecodeError as error:
        path = examples if isinstance(examples, str) else None
        raise errors.DataError(
            f"A record of {path or 'the examples'} is not a serialized tf.Example ({error}). Write "
            "the split again.",
            path=path,
        ) from error
    kinds: dict[str, set[str]] = {}
    for example in examples_read:
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            kinds.setdefault(name, set()).update([kind] if kind else [])
    return kinds


def rehearse(job: Job, contract: ServingContract, checker: Checker) -> None:
    """Checks an export of untrained weights; see `ServingContract.rehearse`.

    Raises:
        ModelValidationError: it failed.
        TrainingError: `export_fn` raised, and the contract asks for a rehearsal.
        WorkerLostError: this process is being stopped.
    """
    is_asked_for = contract.rehearse
    code = job.request.user_code
    if is_asked_for is False or (is_asked_for is None and contract.format == "any"):
        return
    # A module may import its `export_fn`, which only a process that imports the module finds out.
    if is_asked_for is None and not defines_function(code, _EXPORT_FN):
        return
    _logger.info("Rehearsing: %s exports untrained weights", _EXPORT_FN)
    directory = os.path.join(job.request.scratch_dir, _REHEARSAL_DIR)
    try:
        if not export_alone(job, directory, timeout_s=None if is_asked_for else _TIMEOUT_S):
            if is_asked_for:
                _logger.warning(
                    "The contract asks for a rehearsal, but %s has no export_fn(fn_args): skipping "
                    "the rehearsal",
                    code.module,
                )
            return
        required = contract if is_asked_for else _of_any_size(contract)
        report = checker.validate(os.path.join(directory, tfx_names.SERVING_MODEL_DIR), required)
    except errors.GenericTrainerError as error:
        if is_asked_for or isinstance(error, errors.WorkerLostError):
            raise
        _logger.warning(
            "export_fn cannot export untrained weights, so its export is checked only after the "
            "training: %s",
            error,
        )
        return
    if is_asked_for:
        require_passed(report, "The untrained export")
    require_passed(
        not_cured_by_training(report),
        "The untrained export, in ways that training cannot change "
        "(ServingContract(rehearse=False) skips the rehearsal),",
    )
    if not report.passed:
        _logger.warning(
            "The untrained export fails checks that training may cure: %s", report.summary()
        )


def not_cured_by_training(report: ValidationReport) -> ValidationReport:
    """Returns a report in which failures that training may cure are warnings."""
    well = {result.name for result in report.results if result.status in ("pass", "warn")}
    certain = {"code", "rows"} if well >= _ABLE_TO_SCORE else {"code"}
    decided_by = {registered.name: registered.decided_by for registered in all_checks()}
    results = tuple(
        dataclasses.replace(result, status="warn")
        if result.status == "fail" and decided_by[result.name] not in certain
        else result
        for result in report.results
    )
    return dataclasses.replace(report, results=results)


def require_passed(report: ValidationReport, subject: str) -> None:
    """Raises the findings of a report that did not pass; `subject` begins the message.

    Raises:
        ModelValidationError: a check failed.
    """
    if not report.passed:
        raise errors.ModelValidationError(
            f"{subject} failed its checks and is not published.\n{report.summary()}",
            path=report.model_dir,
            report=report,
        )


def export_alone(job: Job, directory: str, *, timeout_s: float | None = None) -> bool:
    """Calls `export_fn` to export into a local directory; returns whether the module has one.

    It runs in a child process: in this one it would leave names in Keras and memory on the GPU, and
    in a cluster only one strategy can be made.

    Raises:
        TrainingError: `export_fn` raised, or took longer than `timeout_s` seconds.
    """
    with recording("", "rehearsal"):  # not part of the progress of the run
        alone = Distribution(launcher="local", env=job.distribution.env, timeout_s=timeout_s)
        launch(dataclasses.replace(job, distribution=alone, export_fn_dir=directory))
    return os.path.exists(directory)


def _of_any_size(contract: ServingContract) -> ServingContract:
    """Returns a contract without shapes: training may determine the number of classes or words."""

    def types(tensors: Mapping[str, str]) -> dict[str, str]:
        return {name: tensor.partition("[")[0].strip() for name, tensor in tensors.items()}

    specs = (
        dataclasses.replace(spec, inputs=types(spec.inputs), outputs=types(spec.outputs))
        for spec in contract.signature_specs
    )
    return dataclasses.replace(contract, signatures=tuple(specs))
