"""Does the graph refer to files outside the model?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from generic_trainer.validation._check import check
from generic_trainer.validation._graph import Node, constants
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, warn

__all__ = ["absolute_paths"]

_PATH = re.compile(r"(/[^/\0\n]+){2,}/?|(gs|s3|hdfs|file|viewfs|abfss?)://.+|[A-Za-z]:[\\/].+")
_MAX_VALUES = 64  # a longer constant is data, such as a vocabulary, not a file name
_READERS = ("InitializeTableFromTextFileV2", "InitializeTableFromTextFile", "ReadFile")


@check("absolute_paths", needs=("serve_tag",))
def absolute_paths(model: ModelUnderTest) -> Iterator[Finding]:
    """No constant names a file outside the model: it would be missing where the model serves."""
    tracked = {asset.tensor_info.name.split(":")[0] for asset in model.assets}
    read = _inputs_of_readers(model.nodes)
    for node, values in constants(model.nodes):
        if len(values) > _MAX_VALUES or (not node.function and node.proto.name in tracked):
            continue
        for path in (v.decode(errors="replace") for v in values):
            if _PATH.fullmatch(path):
                yield from _judge(model, node, path, (node.function, node.proto.name) in read)


def _judge(model: ModelUnderTest, node: Node, path: str, is_read: bool) -> Iterator[Finding]:
    message = f"the constant {node.where} is the path {path!r}"
    if is_read or _inside(path, model.exported_to) or os.path.exists(path):
        yield fail(
            f"{message}, which will not exist where the model serves",
            "keep the file as an asset: self.vocabulary = tf.saved_model.Asset(path) on the "
            "exported object, and build the table from self.vocabulary",
        )
    else:
        yield warn(
            message,
            "if it is a file that the model reads, make it a tracked tf.saved_model.Asset",
        )


def _inside(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(Path(folder).absolute())


def _inputs_of_readers(nodes: list[Node]) -> set[tuple[str, str]]:
    """(function, node) of everything that directly feeds an op that opens files."""
    return {
        (node.function, name.split(":")[0].lstrip("^"))
        for node in nodes
        if node.op in _READERS or node.op.endswith(("Dataset", "DatasetV2", "ReaderV2"))
        for name in node.proto.input
    }
