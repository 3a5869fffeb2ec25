"""Are the files that the graph refers to there?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, warn

__all__ = ["assets"]


@check("assets", needs=("serve_tag",))
def assets(model: ModelUnderTest) -> Iterator[Finding]:
    """Every asset of the graph is there and holds something."""
    for name in sorted({asset.filename for asset in model.assets}):
        file = model.directory / "assets" / name
        if not file.is_file():
            yield fail(
                f"assets/{name} is missing",
                "copy the model with its assets/ folder; without it tables cannot be filled",
            )
        elif file.stat().st_size == 0:
            yield warn(
                f"assets/{name} is empty: every lookup in it will return the default",
                "see whether the vocabulary was complete when the model was exported",
            )
