"""The contract of a run: the user's, completed by what the pipeline says about the model."""

from __future__ import annotations

import dataclasses
import importlib.util
import mmap
import os
import struct
from pathlib import Path
from typing import Any

from generic_trainer._core.files import gfile
from generic_trainer._core.protos import read_schema
from generic_trainer._core.tfx_names import RAW_EXAMPLES, RAW_SCHEMA, TRANSFORMED_SCHEMA
from generic_trainer.errors import DataError, ModuleFileError
from generic_trainer.launchers import TrainingRequest
from generic_trainer.user_code import imported_packages
from generic_trainer.validation import ServingContract

# What a library of ops is linked with, by the name that it has in the file.
_TENSORFLOW_LIBRARY = b"libtensorflow_framework"
_SECTION = struct.Struct("<IIQQQQIIQQ")  # a section header of 64 bits
_SHT_DYNAMIC = 6


def derived_contract(request: TrainingRequest) -> ServingContract:
    """Returns the contract of the run, completed by what its inputs are.

    Eval examples, their statistics, the schema of the raw examples, the model to compare with and
    the Evaluator's config come from the component's inputs, the consumers from the pipeline, and
    libraries of ops from what the user's code imports, unless the contract that the user gave names
    others.

    Of a trainer behind Transform they are the raw examples, which are what the Evaluator and the
    servers will send: those that the transform graph was made from, or the extra input
    `raw_examples`.

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
        if gfile().glob(raw):  # they may have been deleted since
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
            f"The first record of {pattern} is no serialized tf.Example ({error}). Write the split "
            "again.",
            path=pattern,
        ) from error
    schema = read_schema(os.path.join(request.transform_graph_path, TRANSFORMED_SCHEMA))
    return set(example.features.feature) <= {feature.name for feature in schema.feature}


def _schema(request: TrainingRequest) -> str | None:
    if request.transform_graph_path is not None:
        return os.path.join(request.transform_graph_path, RAW_SCHEMA)
    return request.schema_path


def _op_libraries(request: TrainingRequest) -> tuple[str, ...]:
    """Returns the packages that the user's code imports and that may register ops.

    They bring a shared library that is linked with TensorFlow's. They are imported only where the
    model has an op that TensorFlow does not know.
    """
    try:
        names = imported_packages(request.user_code)
    except ModuleFileError:  # of a run that packed it for itself, and has ended
        return ()
    return tuple(name for name in sorted(names - {"tensorflow"}) if _may_register_ops(name))


def _may_register_ops(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # a module that some code has made by hand
        return False
    folders = spec.submodule_search_locations if spec is not None else None
    libraries = (path for folder in folders or () for path in Path(folder).rglob("*.so"))
    return any(_is_linked_with_tensorflow(path) for path in libraries)


def _is_linked_with_tensorflow(library: Path) -> bool:
    try:
        with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            return data.find(_TENSORFLOW_LIBRARY, *_linked_names(data)) >= 0
    except (OSError, ValueError):  # it is empty, or a link to nothing
        return False


def _linked_names(data: mmap.mmap) -> tuple[int, int]:
    """Returns where the names are that a library is linked with, as libraries can be gigabytes.

    Those are the strings of the dynamic section of an ELF file, see elf(5); all of another file.
    """
    try:
        (start,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        sections = [_SECTION.unpack_from(data, start + index * size) for index in range(count)]
        link = next(section[6] for section in sections if section[1] == _SHT_DYNAMIC)
        offset, length = sections[link][4:6]
        return offset, offset + length
    except (struct.error, StopIteration, IndexError):
        return 0, len(data)
