"""Does the graph read or write files of its own?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._graph import Node
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._ops import listed
from generic_trainer.validation._result import Finding, fail, warn

__all__ = ["file_ops"]

_FILE_OPS = re.compile(
    r"(Read|Write|Matching)Files?"
    r"|(WholeFile|TextLine|TFRecord|FixedLengthRecord|LMDB)Reader(V2)?"
    r"|(TFRecord|TextLine|FixedLengthRecord|CSV|Sql|LMDB|Save|Load|Snapshot|MatchingFiles)"
    r"Dataset(V2)?"
    r"|DebugIdentityV[23]"
)
_REMEDY = (
    "a model with this op can read or overwrite files of the server: feed the content as an "
    "input, or accept the op with ServingContract(allowed_ops=...)"
)


@check("file_ops", needs=("serve_tag",))
def file_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """No op reads or writes files, as far as a signature can get (saving and restoring apart)."""
    found = [node for node in model.nodes if _touches_files(node)]
    found = [node for node in found if node.op not in model.contract.allowed_ops]
    served = [node for node in found if node.served]
    if served:
        yield fail(f"reads or writes files: {listed(served)}", _REMEDY)
    elif found:
        yield warn(f"in a function that no signature uses: {listed(found)}", _REMEDY)
    prints = [node for node in model.nodes if node.op in ("Print", "PrintV2") and node.served]
    if prints and not {"Print", "PrintV2"} & set(model.contract.allowed_ops):
        yield warn(
            f"prints on every call: {listed(prints)}",
            "remove tf.print from the exported function; it fills the server's log",
        )


def _touches_files(node: Node) -> bool:
    if node.op == "PrintV2":
        return node.proto.attr["output_stream"].s.startswith(b"file:")
    return bool(_FILE_OPS.fullmatch(node.op))
