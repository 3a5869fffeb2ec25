"""Conversion of TFX's artifacts and execution properties into a `TrainingRequest`."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format
from tfx import types
from tfx.dsl.io import fileio
from tfx.proto import trainer_pb2
from tfx.types import artifact_utils
from tfx.utils import io_utils, json_utils, path_utils, proto_utils

from generic_trainer._core import tfx_names as keys
from generic_trainer._core.texts import (
    describe,
    load_hyperparameters,
    load_statistics,
    parse_json,
    shown,
)
from generic_trainer._entry_points import may_define
from generic_trainer._run.store import with_run_key
from generic_trainer.errors import ConfigurationError, DataError
from generic_trainer.launchers import Distribution, ExamplesFormat, TrainingRequest
from generic_trainer.tracking import Tracking, parse_trackings
from generic_trainer.user_code import UserCode, bundle_function, bundle_module_file
from generic_trainer.validation import ServingContract

_Artifacts = Mapping[str, Sequence[types.Artifact]]
_STATISTICS_FILE = "FeatureStats.pb"

_logger = logging.getLogger(__name__)


def request_from_artifacts(
    input_dict: _Artifacts,
    output_dict: _Artifacts,
    exec_properties: Mapping[str, Any],
    *,
    scratch_dir: str,
    consumers: Sequence[str] = (),
) -> TrainingRequest:
    """Returns the training request for the arguments of an executor.

    Args:
        input_dict: input name → artifacts.
        output_dict: output name → artifacts.
        exec_properties: the component's execution properties.
        scratch_dir: a local directory that exists until the end of the run.
        consumers: the ids of the downstream nodes.

    Raises:
        ConfigurationError: an execution property is malformed.
        DataError: an input artifact is missing, empty or unreadable.
        ModuleFileError: a module file that was not bundled at compile time cannot be bundled now.
    """
    input_dict = _all_inputs(input_dict, exec_properties)
    train_args = _proto(exec_properties, keys.TRAIN_ARGS, trainer_pb2.TrainArgs())
    eval_args = _proto(exec_properties, keys.EVAL_ARGS, trainer_pb2.EvalArgs())
    examples = input_dict.get(keys.EXAMPLES) or []
    splits = common_splits(examples)
    request = TrainingRequest(
        user_code=_user_code(exec_properties, scratch_dir),
        train_files=split_files(examples, list(train_args.splits) or ["train"], trained_on=True),
        eval_files=split_files(examples, list(eval_args.splits) or ["eval"]),
        split_files={name: split_files(examples, [name]) for name in splits},
        examples_format=examples_format(examples),
        model_dir=artifact_utils.get_single_uri(output_dict[keys.MODEL]),
        model_run_dir=artifact_utils.get_single_uri(output_dict[keys.MODEL_RUN]),
        scratch_dir=scratch_dir,
        # In a proto, 0 and "not set" are the same. TensorFlow rejects 0 steps, so 0 means not set.
        train_steps=train_args.num_steps or None,
        eval_steps=eval_args.num_steps or None,
        schema_path=_only_file(input_dict, keys.SCHEMA),
        transform_graph_path=_only_uri(input_dict, keys.TRANSFORM_GRAPH),
        base_model=_base_model(input_dict),
        hyperparameters=load_hyperparameters(_only_file(input_dict, keys.HYPERPARAMETERS)),
        custom_config=_custom_config(exec_properties),
        num_examples=num_examples(input_dict.get(keys.STATISTICS)),
        raw_examples=tf_examples(input_dict.get(keys.RAW_EXAMPLES)),
        statistics_path=statistics_pattern(input_dict.get(keys.STATISTICS)),
        extra_inputs=_extra_inputs(input_dict),
        contract=_contract(exec_properties),
        eval_config=_eval_config(exec_properties),
        consumers=tuple(consumers),
        sign_with=exec_properties.get(keys.SIGN_WITH),
    )
    return with_run_key(request, distribution_of(exec_properties).env)


def distribution_of(exec_properties: Mapping[str, Any]) -> Distribution:
    """Returns the distribution of the training; by default, one worker in this process.

    Raises:
        ConfigurationError: the execution property is not a distribution.
    """
    return Distribution.from_json(exec_properties.get(keys.DISTRIBUTION) or "{}")


def tracking_of(exec_properties: Mapping[str, Any]) -> tuple[Tracking, ...]:
    """Returns the trackings of the run.

    Raises:
        ConfigurationError: the execution property is not a list of trackings.
    """
    text = exec_properties.get(keys.TRACKING) or "[]"
    try:
        return parse_trackings(parse_json(text))
    except ValueError as error:
        raise ConfigurationError(
            f"The execution property tracking must be JSON, but got {shown(text)} ({error})."
        ) from error


def _user_code(exec_properties: Mapping[str, Any], scratch_dir: str) -> UserCode:
    module_path = exec_properties.get(keys.MODULE_PATH)
    module_file = exec_properties.get(keys.MODULE_FILE)
    run_fn = exec_properties.get(keys.RUN_FN)
    if module_path:
        module, _, bundle = module_path.partition("@")
        function = run_fn.rpartition(".")[2] if run_fn else keys.RUN_FN
        digest = exec_properties.get(keys.MODULE_HASH)
        return UserCode(module, function, bundle=bundle or None, digest=digest)
    if module_file:
        return bundle_module_file(module_file, scratch_dir, may_define=may_define)
    if run_fn:
        return bundle_function(run_fn, scratch_dir, may_define=may_define)
    raise ConfigurationError(
        "The execution properties name no user code: one of module_file, module_path and run_fn "
        f"must be set, but the properties set are {sorted(exec_properties)}."
    )


def _all_inputs(input_dict: _Artifacts, exec_properties: Mapping[str, Any]) -> _Artifacts:
    """Returns the inputs with those that the component has left out, as another has the channel."""
    same = json.loads(exec_properties.get(keys.SAME_INPUTS) or "{}")
    return {**input_dict, **{name: input_dict.get(given, ()) for name, given in same.items()}}


def _proto(exec_properties: Mapping[str, Any], name: str, proto: Any) -> Any:
    text = exec_properties.get(name) or "{}"
    try:
        return proto_utils.json_to_proto(text, proto)
    except (TypeError, ValueError, RecursionError, json_format.ParseError) as error:
        raise ConfigurationError(
            f"The execution property {name} must be JSON of {type(proto).__name__}, "
            f"but got {shown(text)} ({error})."
        ) from error


def _custom_config(exec_properties: Mapping[str, Any]) -> dict[str, Any] | None:
    text = exec_properties.get(keys.CUSTOM_CONFIG) or "null"
    try:
        value = json_utils.loads(text)
    except Exception as error:  # classes of TFX's objects in it may raise any exception
        raise ConfigurationError(
            f"The execution property custom_config must be JSON, but got {shown(text)} ({error})."
        ) from error
    if value is not None and not isinstance(value, dict):
        raise ConfigurationError(f"custom_config must be a dict, but got {describe(value)}.")
    return value


def _contract(exec_properties: Mapping[str, Any]) -> ServingContract | None:
    text = exec_properties.get(keys.CONTRACT)
    return ServingContract.from_json(text) if text else None


def _eval_config(exec_properties: Mapping[str, Any]) -> Any:
    if not exec_properties.get(keys.EVAL_CONFIG):
        return None
    from tensorflow_model_analysis.proto import config_pb2

    return _proto(exec_properties, keys.EVAL_CONFIG, config_pb2.EvalConfig())


def _only_uri(input_dict: _Artifacts, name: str) -> str | None:
    artifacts = input_dict.get(name)
    if not artifacts:
        return None
    if len(artifacts) > 1:
        raise DataError(
            f"The input {name} must be one artifact, but there are {len(artifacts)}: "
            f"{[artifact.uri for artifact in artifacts]}."
        )
    return artifacts[0].uri


def _only_file(input_dict: _Artifacts, name: str) -> str | None:
    directory = _only_uri(input_dict, name)
    if directory is None:
        return None
    try:
        return io_utils.get_only_uri_in_dir(directory)
    except Exception as error:  # the type of the error depends on the file system
        raise DataError(
            f"The input {name} must be a directory with exactly one file, but {directory} is not.",
            path=directory,
        ) from error


def _base_model(input_dict: _Artifacts) -> str | None:
    uri = _only_uri(input_dict, keys.BASE_MODEL)
    if uri is None:
        return None
    artifact = input_dict[keys.BASE_MODEL][0]
    return path_utils.serving_model_path(uri, path_utils.is_old_model_artifact(artifact))


def _extra_inputs(input_dict: _Artifacts) -> dict[str, tuple[str, ...]]:
    return {
        name.removeprefix(keys.EXTRA_INPUT_PREFIX): tuple(artifact.uri for artifact in artifacts)
        for name, artifacts in input_dict.items()
        if name.startswith(keys.EXTRA_INPUT_PREFIX)
    }


def split_files(
    examples: Sequence[types.Artifact], splits: Sequence[str], *, trained_on: bool = False
) -> tuple[str, ...]:
    """Returns one file pattern for each split of each artifact, without those that have no file.

    Args:
        examples: the artifacts.
        splits: names of splits.
        trained_on: whether there must be a file; `run_fn` may read no other split.

    Raises:
        DataError: there is no artifact, one has not all of the splits, or none has a file.
    """
    if not examples:
        raise DataError("The input examples holds no artifact: there is nothing to train on.")
    directories = [uri for split in splits for uri in _split_uris(examples, split)]
    empty = [directory for directory in directories if not _has_files(directory)]
    if empty:
        message = f"These splits of the input examples have no files: {', '.join(empty)}."
        if trained_on and empty == directories:
            raise DataError(message, path=empty[0])
        _logger.warning(message)
    return tuple(io_utils.all_files_pattern(path) for path in directories if path not in empty)


def common_splits(examples: Sequence[types.Artifact]) -> list[str]:
    """Returns the names of the splits that every artifact has, and some with files."""
    named = [artifact_utils.decode_split_names(artifact.split_names) for artifact in examples]
    of_first = named[0] if named else []
    common = [split for split in of_first if all(split in names for names in named)]
    return [split for split in common if any(map(_has_files, _split_uris(examples, split)))]


def _split_uris(examples: Sequence[types.Artifact], split: str) -> list[str]:
    try:
        return artifact_utils.get_split_uris(list(examples), split)
    except ValueError as error:
        splits_of = {
            artifact.uri: artifact_utils.decode_split_names(artifact.split_names)
            for artifact in examples
        }
        raise DataError(
            f"Every artifact of the input examples must have the split {split!r}, but the splits "
            f"are {splits_of}. Name others with train_args=TrainArgs(splits=[...]) and "
            "eval_args=EvalArgs(splits=[...])."
        ) from error


def _has_files(directory: str) -> bool:
    return fileio.exists(directory) and bool(fileio.listdir(directory))


def examples_format(examples: Sequence[types.Artifact]) -> ExamplesFormat:
    """Returns how the records of all the artifacts are encoded.

    Raises:
        DataError: the artifacts differ in format, or only some have a DataView.
    """
    # Imports TensorFlow Model Analysis and Beam, hence not before a run.
    from tfx.components.util import tfxio_utils

    try:
        resolved = tfxio_utils.resolve_payload_format_and_data_view_uri(list(examples))
    except ValueError as error:
        raise DataError(
            f"The artifacts of the input examples do not go together: {error}"
        ) from error
    return ExamplesFormat(*resolved)


def tf_examples(examples: Sequence[types.Artifact] | None) -> tuple[str, ...]:
    """Returns the URIs of artifacts whose records are tf.Examples; none where they are not."""
    if not examples or not examples_format(examples).is_tf_example:
        return ()
    return tuple(artifact.uri for artifact in examples)


def num_examples(statistics: Sequence[types.Artifact] | None) -> dict[str, int] | None:
    """Returns split name → number of examples, or None without statistics of splits.

    Raises:
        DataError: a statistics file is missing or broken.
    """
    if not statistics:
        return None
    counts: dict[str, int] = {}
    for artifact in statistics:
        for split in artifact_utils.decode_split_names(artifact.split_names):
            uri = artifact_utils.get_split_uri([artifact], split)
            datasets = load_statistics(os.path.join(uri, _STATISTICS_FILE)).datasets
            # Of slices, in any order, the largest is that of all examples.
            counted = max((dataset.num_examples for dataset in datasets), default=0)
            counts[split] = counts.get(split, 0) + counted
    return counts or None


def statistics_pattern(statistics: Sequence[types.Artifact] | None) -> str | None:
    """Returns the pattern of the files of the first artifact that has one for each split.

    Those of Transform have no splits, and may be of other features than the examples have.
    """
    for artifact in statistics or ():
        pattern = os.path.join(artifact.uri, "*", _STATISTICS_FILE)
        if fileio.glob(pattern):
            return pattern
        _logger.warning(
            "The checks do not use the statistics %s: they have no splits, as those of Transform. "
            "Pass the output of a StatisticsGen of the raw examples.",
            artifact.uri,
        )
    return None
