"""Models that are several files: TensorFlow.js's shards, Orbax's checkpoints of JAX."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer.validation._formats.contents import Contents

_TFJS = re.compile(rb'\s*\{.*"(modelTopology|weightsManifest)"', re.DOTALL)
_COPY = "copy the whole directory again"
# Orbax: of a checkpoint of one tree, of one with several items, of a tree in one database.
_ORBAX_FILES = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt")
_UNFINISHED = ".orbax-checkpoint-tmp"


def is_tfjs(head: bytes, file: Path) -> bool:
    """Returns whether a file is the index of one by its content."""
    is_index = file.suffix == ".json" and head.lstrip().startswith(b"{")
    return is_index and bool(_TFJS.match(file.read_bytes()))


def read_tfjs(file: Path) -> Contents:
    """Reads the index of a model, and looks whether its shards are there and whole.

    Raises:
        ValueError: it is none, or is damaged.
    """
    try:
        index = json.loads(file.read_bytes())
        groups = index["weightsManifest"]
        missing: list[str] = []
        wrong: list[str] = []
        kinds: set[str] = set()
        for group in groups:
            shards = [file.parent / path for path in group["paths"]]
            missing += [shard.name for shard in shards if not shard.is_file()]
            kinds.update(
                w["quantization"]["dtype"] for w in group["weights"] if "quantization" in w
            )
            expected = sum(map(_tfjs_bytes, group["weights"]))
            found = sum(shard.stat().st_size for shard in shards if shard.is_file())
            is_known = all(weight["dtype"] != "string" for weight in group["weights"])
            if is_known and not missing and found != expected:
                wrong.append(f"{', '.join(group['paths'][:3])} have {found} bytes, not {expected}")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no whole index of TensorFlow.js ({error!r})") from error
    flaws = [*(f"{name} is missing" for name in missing), *wrong]
    return Contents(
        summary=f"TensorFlow.js, {index.get('format') or 'layers-model'}"
        + (f" with {', '.join(sorted(kinds))} weights" if kinds else ""),
        quantised=min(kinds, default=""),
        flaws=[(flaw, _COPY) for flaw in flaws],
    )


def _tfjs_bytes(weight: Any) -> int:
    dtype = weight.get("quantization", {}).get("dtype", weight["dtype"])
    size = 1 if dtype == "bool" else 0 if dtype == "string" else np.dtype(dtype).itemsize
    return math.prod(weight["shape"]) * size


def is_orbax(_: bytes, file: Path) -> bool:
    """Returns whether a file is the metadata of a checkpoint, or of one that was never finished."""
    return file.name in _ORBAX_FILES or any(_UNFINISHED in part for part in file.parts)


def read_orbax(file: Path) -> Contents:
    """Reads the metadata of a checkpoint.

    Raises:
        ValueError: it is none, is damaged, or was never finished.
    """
    if any(_UNFINISHED in part for part in file.parts):
        raise ValueError(
            "the checkpoint was never finished: Orbax takes the suffix from its directory's name "
            "when all of it is written (wait_until_finished())"
        )
    if file.name == "manifest.ocdbt":
        # The database's manifest begins with its magic number, and 8 bytes of length.
        if len(content := file.read_bytes()) < 16 or content[:4] != b"\x0c\xdb\x3a\x2a":
            raise ValueError("it is no manifest of OCDBT")
        if not any(_data_files(file.parent)):
            raise ValueError("the database that it is of, in d/, is missing")
        return Contents("Orbax, an OCDBT database")
    try:
        metadata = json.loads(file.read_bytes())
        tree = metadata.get("tree_metadata")
        items = metadata.get("item_handlers")
    except AttributeError as error:
        raise ValueError("its metadata is no object") from error
    if tree is None:
        named = ", ".join(sorted(items)) if isinstance(items, dict) else ""
        return Contents(f"Orbax checkpoint{f' of {named}' if named else ''}")
    has_values = any(path.name != file.name for path in file.parent.rglob("*") if path.is_file())
    flaws = [] if has_values else [("there is no file with its values beside it", _COPY)]
    return Contents(f"Orbax, a tree of {len(tree)} arrays", flaws=flaws)


def _data_files(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.rglob("*") if path.is_file() and path.parent.name == "d")
