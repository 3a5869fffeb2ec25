"""Examples and ExampleStatistics artifacts: their splits, files, formats and counts."""

import os
from collections.abc import Sequence

from tfx import types
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx.utils import io_utils

from generic_trainer._core.protos import load_statistics
from generic_trainer.errors import DataError
from generic_trainer.launchers import ExamplesFormat

_STATISTICS_FILE = "FeatureStats.pb"


def split_files(examples: Sequence[types.Artifact], splits: Sequence[str]) -> tuple[str, ...]:
    """Returns one file pattern for each split of each artifact.

    Raises:
        DataError: there is no artifact, one has not all of the splits, or a split has no file.
    """
    if not examples:
        raise DataError("The input examples holds no artifact: there is nothing to train on.")
    directories = [uri for split in splits for uri in _split_uris(examples, split)]
    empty = [directory for directory in directories if not _has_files(directory)]
    if empty:
        raise DataError(
            f"These splits of the input examples have no files: {', '.join(empty)}.", path=empty[0]
        )
    return tuple(io_utils.all_files_pattern(directory) for directory in directories)


def common_splits(examples: Sequence[types.Artifact]) -> list[str]:
    """Returns the names of the splits that every artifact has and that have files."""
    named = [artifact_utils.decode_split_names(artifact.split_names) for artifact in examples]
    return [
        split
        for split in (named[0] if named else [])
        if all(split in names for names in named)
        and all(map(_has_files, _split_uris(examples, split)))
    ]


def _split_uris(examples: Sequence[types.Artifact], split: str) -> list[str]:
    try:
        return artifact_utils.get_split_uris(list(examples), split)
    except ValueError as error:
        found = {
            artifact.uri: artifact_utils.decode_split_names(artifact.split_names)
            for artifact in examples
        }
        raise DataError(
            f"Every artifact of the input examples must have the split {split!r}, but the splits "
            f"are {found}. Name others with train_args=TrainArgs(splits=[...]) and "
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
    """Returns split name → number of examples, or None without a statistics artifact.

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
            counted = sum(dataset.num_examples for dataset in datasets[:1])
            counts[split] = counts.get(split, 0) + counted
    return counts


def statistics_pattern(statistics: Sequence[types.Artifact] | None) -> str | None:
    """Returns the pattern of the first statistics artifact's files, one for each split."""
    return os.path.join(statistics[0].uri, "*", _STATISTICS_FILE) if statistics else None
