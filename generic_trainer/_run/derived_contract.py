"""The contract of a run: the user's, completed by what the pipeline says about the model."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from generic_trainer._core.protos import read_schema
from generic_trainer.errors import DataError
from generic_trainer.launchers import TrainingRequest
from generic_trainer.validation import ServingContract

_RAW_EXAMPLES = "raw_examples"
# Inside a TransformGraph artifact (`tensorflow_transform.TFTransformOutput`).
_RAW_SCHEMA = "metadata/schema.pbtxt"
_TRANSFORMED_SCHEMA = "transformed_metadata/schema.pbtxt"


def derived_contract(request: TrainingRequest) -> ServingContract:
    """Returns the contract of the run, completed by what its inputs are.

    Eval examples, the schema of the raw examples, the model to compare with and the Evaluator's
    config come from the component's inputs, and the consumers from the pipeline, unless the
    contract that the user gave names others.

    A trainer behind Transform sees no raw examples, which are what the Evaluator and the servers
    will send; the extra input `raw_examples` makes up for that.

    Raises:
        DataError: the eval examples cannot be read.
    """
    contract = request.contract or ServingContract(signatures=())
    if contract.format != "saved_model":
        return contract
    derived = {
        **_examples(request),
        "schema": _schema(request),
        "transform_graph": request.transform_graph_path,
        "base_model": request.base_model,
        "eval_config": request.eval_config,
        "consumers": request.consumers,
    }
    return dataclasses.replace(
        contract, **{name: value for name, value in derived.items() if not getattr(contract, name)}
    )


def _examples(request: TrainingRequest) -> dict[str, Any]:
    if not request.examples_format.is_tf_example:
        return {}
    pattern = request.eval_files[0]
    if not _transformed(request, pattern):
        return {"examples": pattern}
    if _RAW_EXAMPLES in request.extra_inputs:
        (uri, *_) = request.extra_inputs[_RAW_EXAMPLES]
        return {"examples": os.path.join(uri, *pattern.split(os.sep)[-2:])}
    return {"examples": pattern, "examples_transformed": True}


def _transformed(request: TrainingRequest, pattern: str) -> bool:
    """Whether the examples are the output of the transform graph rather than its input."""
    if request.transform_graph_path is None:
        return False
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    from generic_trainer._core.records import read_records

    try:
        example = tf.train.Example.FromString(read_records(pattern, 1)[0])
    except DecodeError as error:
        raise DataError(
            f"The first record of {pattern} is no serialized tf.Example ({error}). Write the split "
            "again.",
            path=pattern,
        ) from error
    schema = read_schema(os.path.join(request.transform_graph_path, _TRANSFORMED_SCHEMA))
    return set(example.features.feature) <= {feature.name for feature in schema.feature}


def _schema(request: TrainingRequest) -> str | None:
    if request.transform_graph_path is not None:
        return os.path.join(request.transform_graph_path, _RAW_SCHEMA)
    return request.schema_path
