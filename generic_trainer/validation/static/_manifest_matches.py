"""Are the files those that were published?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from generic_trainer.validation._check import check
from generic_trainer.validation._manifest import MANIFEST, read_manifest, sha256
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, skip

__all__ = ["manifest_matches"]

_REMEDY = "copy the model again from where it was published, with all of its files"


@check("manifest_matches", needs=("presence",))
def manifest_matches(model: ModelUnderTest) -> Iterator[Finding]:
    """Every file has the SHA-256 that the model's manifest.json lists.

    A truncated vocabulary loads and silently returns defaults; only this finds it.
    """
    if Path(MANIFEST) not in model.files:
        yield skip(f"no {MANIFEST}: the model was not published by this package")
        return
    try:
        listed = read_manifest(model.directory)["files"]
    except ValueError as error:
        yield fail(f"{MANIFEST} cannot be read: {error}", _REMEDY)
        return
    present = {path.as_posix() for path in model.files}
    missing = sorted(set(listed) - present)
    changed = [name for name in sorted(set(listed) & present) if _differs(model, name, listed)]
    if missing:
        yield fail(f"missing since the model was published: {', '.join(missing[:5])}", _REMEDY)
    if changed:
        yield fail(f"changed since the model was published: {', '.join(changed[:5])}", _REMEDY)


def _differs(model: ModelUnderTest, name: str, listed: dict[str, dict[str, str]]) -> bool:
    return sha256(model.directory / name) != listed[name].get("sha256")
