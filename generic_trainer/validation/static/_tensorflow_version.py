"""Was the model saved by a newer TensorFlow than the one that checks it?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, note, warn

__all__ = ["tensorflow_version"]


@check("tensorflow_version", needs=("serve_tag",))
def tensorflow_version(model: ModelUnderTest) -> Iterator[Finding]:
    """The model was not saved by a newer TensorFlow than the one that runs here."""
    import tensorflow as tf

    saved_by = model.meta_graph.meta_info_def.tensorflow_version
    if not saved_by:
        yield note("the model does not say which TensorFlow saved it")
        return
    model.facts["saved_by_tensorflow"] = saved_by
    if _minor(saved_by) > _minor(tf.__version__):
        yield warn(
            f"saved by TensorFlow {saved_by}, checked with the older {tf.__version__}",
            "serve with a TensorFlow that is at least as new as the one that exports: an older "
            "one may lack ops or attributes",
        )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
