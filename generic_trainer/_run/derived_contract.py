"""The contract of a run: the user's, completed from the inputs of the component."""

from __future__ import annotations

import dataclasses
import importlib.util
import mmap
import os
from pathlib import Path
from typing import Any

from generic_trainer._core.files import gfile
from generic_trainer._core.protos import load_schema
from generic_trainer._core.tfx_names import RAW_EXAMPLES, RAW_SCHEMA, TRANSFORMED_SCHEMA
from generic_trainer.errors import DataError, ModuleFileError
from generic_trainer.launchers import TrainingRequest
from generic_trainer.user_code import imported_packages
from generic_trainer.validation import ServingContract

# The library that every library of TensorFlow ops is linked with.
_TENSORFLOW_LIBRARY = b"libtensorflow_framework"


def derived_contract(request: TrainingRequest) -> ServingContract:
    """Returns the contract of the run, completed from its inputs.

    Fields that the user's contract leaves empty come from elsewhere: eval examples, their
    statistics, the schema, the base model and the eval config from the component's inputs,
    consumers from the pipeline, and libraries of ops from the imports of the user's code.

    Behind Transform the examples are the raw ones, because Evaluator and servers send those: the
    examples that the transform graph was made from, or the extra input `raw_examples`.

    Raises:
        DataError: the eval examples cannot be read.
    """
    contract = request.contract or ServingContract(signatures=())
    if contract.format == "any":
        return contract
    derived = {
        **_examples(request),
        "schema": _schema(request),
        "statistics": request.statistics_path,
        "transform_graph": request.transform_graph_path,
        "base_model": request.base_model,
        "eval_config": request.eval_config,
        "consumers": request.consumers,
        "op_libraries": _op_libraries(request),
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
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    from generic_trainer._core.records import read_records

    try:
        example = tf.train.Example.FromString(read_records(pattern, 1)[0])
    except DecodeError as error:
        raise DataError(
            f"The first record of {pattern} is not a serialized tf.Example ({error}). Write the "
            "split again.",
            path=pattern,
        ) from error
    schema = load_schema(os.path.join(request.transform_graph_path, TRANSFORMED_SCHEMA))
    return set(example.features.feature) <= {feature.name for feature in schema.feature}


def _schema(request: TrainingRequest) -> str | None:
    if request.transform_graph_path is not None:
        return os.path.join(request.transform_graph_path, RAW_SCHEMA)
    return request.schema_path


def _op_libraries(request: TrainingRequest) -> tuple[str, ...]:
    """Returns the imported packages that contain a shared library linked with TensorFlow's.

    The checks import them only if the model has an op that TensorFlow does not know.
    """
    try:
        names = imported_packages(request.user_code)
    except ModuleFileError:  # the bundle of a run that packed it for itself, and has ended
        return ()
    return tuple(name for name in sorted(names - {"tensorflow"}) if _may_register_ops(name))


def _may_register_ops(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # a module that code has created by hand
        return False
    folders = spec.submodule_search_locations if spec is not None else None
    libraries = (path for folder in folders or () for path in Path(folder).rglob("*.so"))
    return any(_is_linked_with_tensorflow(path) for path in libraries)


def _is_linked_with_tensorflow(library: Path) -> bool:
    try:
        with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            return data.find(_TENSORFLOW_LIBRARY) >= 0
    except (OSError, ValueError):  # it is empty, or a dangling link
        return False
