"""Are the files those of one complete export?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, warn

__all__ = ["leftovers"]

_PROTOBUF_LIMIT = (1 << 31) - 1  # bytes; no C++ consumer reads more
_SHARD = re.compile(r"variables\.data-(\d{5})-of-(\d{5})")
_TEMPORARY = re.compile(r"_temp\b|\.tmp\b|tempstate|\.part$|^\.nfs")


@check("leftovers", needs=("presence",))
def leftovers(model: ModelUnderTest) -> Iterator[Finding]:
    """saved_model.pb is below protobuf's 2 GB, and no file is left over from a broken save."""
    if Path("saved_model.pb") in model.files:
        size = (model.directory / "saved_model.pb").stat().st_size
        if size > _PROTOBUF_LIMIT:
            yield fail(
                f"saved_model.pb has {size} bytes, protobuf reads at most {_PROTOBUF_LIMIT}",
                "weights ended up as constants: keep them in tf.Variable attributes",
            )
    strange = [str(path) for path in model.files if _is_leftover(path)]
    totals = {match[2] for path in model.files if (match := _SHARD.fullmatch(path.name))}
    if len(totals) > 1:
        strange.append("variables/ with the shards of two saves")
    if strange:
        yield warn(
            f"left over from an interrupted or repeated save: {', '.join(strange[:5])}",
            "export into an empty directory and wait until the save has returned",
        )


def _is_leftover(path: Path) -> bool:
    return any(_TEMPORARY.search(part) for part in path.parts)
