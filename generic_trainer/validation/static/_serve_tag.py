"""Is there a graph for serving?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail

__all__ = ["serve_tag"]


@check("serve_tag", needs=("parses",))
def serve_tag(model: ModelUnderTest) -> Iterator[Finding]:
    """One MetaGraph is tagged exactly {serve}, which is what every consumer asks for."""
    tags = [set(graph.meta_info_def.tags) for graph in model.saved_model.meta_graphs]
    if {"serve"} not in tags:
        found = ", ".join("{" + ", ".join(sorted(found)) + "}" for found in tags)
        yield fail(
            f"expected a MetaGraph tagged exactly {{serve}}, found {found}",
            "export with tf.saved_model.save, or pass [tf.saved_model.SERVING] to a "
            "SavedModelBuilder",
        )
