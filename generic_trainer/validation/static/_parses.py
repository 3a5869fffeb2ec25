"""Can `saved_model.pb` be read?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail

__all__ = ["parses"]


@check("parses", needs=("presence",))
def parses(model: ModelUnderTest) -> Iterator[Finding]:
    """The SavedModel proto parses and holds a graph."""
    try:
        meta_graphs = len(model.saved_model.meta_graphs)
    except Exception as error:
        yield fail(
            f"saved_model.pb does not parse: {error}",
            "the file is truncated or damaged: export again, and copy whole files",
        )
        return
    if not meta_graphs:
        yield fail(
            "saved_model.pb parses and holds no graph",
            "the file is truncated or empty: export again with tf.saved_model.save",
        )
