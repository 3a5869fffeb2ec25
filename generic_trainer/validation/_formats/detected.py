"""The models in other formats that lie in an export, known by content first and by name second."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from generic_trainer.validation._formats import (
    boosted_trees,
    directories,
    keras_files,
    onnx,
    pickles,
    tflite,
)
from generic_trainer.validation._formats.contents import Contents

_HEAD_BYTES = 256
# Of a SavedModel, and of this package.
_NOT_LOOKED_AT = {"saved_model.pb", "saved_model.pbtxt", "fingerprint.pb", "keras_metadata.pb"}
_MANIFEST = "manifest.json"
_MAGIC = re.compile(rb"....TFL3|\x89HDF|PK\x03\x04|\x80[\x02-\x05]|\{[LU]", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A file of an export that is a model of its own.

    Attributes:
        path: relative to the export; of several files the one that names the others.
        contents: what it holds; None where it cannot be read.
        problem: why it cannot.
        is_by_name: whether only its name says what it should be.
    """

    path: Path
    contents: Contents | None = None
    problem: str = ""
    is_by_name: bool = False


def find_artifacts(
    directory: Path, files: Iterable[Path], allowed_globals: Collection[str]
) -> Iterator[Artifact]:
    """Yields what is a model, or should be one by its name.

    Args:
        directory: the export.
        files: of it, relative.
        allowed_globals: what pickles and Keras files may name, besides what is known as data.
    """
    readers: tuple[tuple[Callable[[bytes, Path], bool], Callable[[Path], Contents]], ...] = (
        (tflite.is_tflite, tflite.read),
        (keras_files.is_keras, lambda file: keras_files.read(file, allowed_globals)),
        (pickles.is_pickle, lambda file: pickles.read(file, allowed_globals)),
        (boosted_trees.is_boosted_trees, boosted_trees.read),
        (directories.is_tfjs, directories.read_tfjs),
        (directories.is_orbax, directories.read_orbax),
        (onnx.is_onnx, onnx.read),
    )
    for path in files:
        if path.name in _NOT_LOOKED_AT or path.parts[0] == "variables" or path == Path(_MANIFEST):
            continue
        file = directory / path
        with open(file, "rb") as opened:
            head = opened.read(_HEAD_BYTES)
        read = next((read for belongs, read in readers if belongs(head, file)), None)
        if read is None:
            continue
        try:
            yield Artifact(path, read(file))
        except ValueError as error:
            yield Artifact(path, None, str(error), is_by_name=_MAGIC.match(head) is None)
