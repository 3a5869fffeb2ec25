"""Is there anything, and is it a SavedModel?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail

__all__ = ["presence"]

_SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt", "saved_model.cpb")


@check("presence")
def presence(model: ModelUnderTest) -> Iterator[Finding]:
    """The directory holds a SavedModel."""
    model.facts["files"] = len(model.files)
    model.facts["size_bytes"] = sum((model.directory / path).stat().st_size for path in model.files)
    if not model.files:
        yield fail(
            f"no file in {model.exported_to}",
            "save the model to fn_args.serving_model_dir at the end of run_fn",
        )
    elif model.contract.format == "saved_model" and not _is_saved_model(model):
        listed = ", ".join(str(path) for path in model.files[:5])
        yield fail(
            f"expected one of {', '.join(_SAVED_MODEL_FILES)} in {model.exported_to}, found "
            f"{listed}{_nested(model.files)}",
            'export a SavedModel; for another format on purpose set format="any" in the '
            "ServingContract: then only presence and manifest are checked",
        )


def _is_saved_model(model: ModelUnderTest) -> bool:
    return any(Path(name) in model.files for name in _SAVED_MODEL_FILES)


def _nested(files: list[Path]) -> str:
    inner = [path.parent for path in files if path.name in _SAVED_MODEL_FILES]
    return f"; there is a SavedModel below it, in {inner[0]}" if inner else ""
