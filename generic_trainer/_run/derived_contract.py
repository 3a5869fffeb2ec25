"""The contract of a run: the user's, completed from the inputs of the component."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from generic_trainer._core.files import gfile
from generic_trainer._core.protos import load_schema
from generic_trainer._core.tfx_names import RAW_EXAMPLES, RAW_SCHEMA, TRANSFORMED_SCHEMA
from generic_trainer.errors import DataError
from generic_trainer.launchers import TrainingRequest
from generic_trainer.validation import ServingContract


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
    graph, schema = request.transform_graph_path, request.schema_path
    derived = {
        **_examples(request),
        "schema": schema if graph is None else os.path.join(graph, RAW_SCHEMA),
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
    if not request.examples_format.is_tf_example:
        return {}
    pattern = request.eval_files[0]
    if not _transformed(request, pattern):
        return {"examples": pattern}
    split_and_files = pattern.split(os.sep)[-2:]
    if RAW_EXAMPLES in request.extra_inputs:
        (uri, *_) = request.extra_inputs[RAW_EXAMPLES]
        return {"examples": os.path.join(uri, *split_and_files)}
    for uri in request.raw_examples:
        raw = os.path.join(uri, *split_and_files)
        if gfile().glob(raw):  # they may be deleted by now
            return {"examples": raw}
    return {"examples": pattern, "examples_transformed": True}


def _transformed(request: TrainingRequest, pattern: str) -> bool:
    """Whether the examples are the output of the transform graph rather than its input."""
    if request.transform_graph_path is None:
        return False
    schema = load_schema(os.path.join(request.transform_graph_path, TRANSFORMED_SCHEMA))
    return features_of(pattern, 1) <= {feature.name for feature in schema.feature}


def features_of(examples: str | Sequence[bytes], count: int = 100) -> set[str]:
    """Returns the features that the first examples have.

    Args:
        examples: a pattern of TFRecord files, or serialized examples.
        count: how many examples to look at.

    Raises:
        DataError: they cannot be read.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    from generic_trainer._core.records import read_records

    try:
        found = [tf.train.Example.FromString(each) for each in read_records(examples, count)]
    except DecodeError as error:
        path = examples if isinstance(examples, str) else None
        raise DataError(
            f"A record of {path or 'the examples'} is not a serialized tf.Example ({error}). Write "
            "the split again.",
            path=path,
        ) from error
    return {name for example in found for name in example.features.feature}
