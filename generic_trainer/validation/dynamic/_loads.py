"""Does TensorFlow 2 load the model?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer._core.machine import resident_memory_mb
from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._ops import import_library
from generic_trainer.validation._result import Finding, fail
from generic_trainer.validation._scoring import first_line

__all__ = ["loads"]


@check("loads", needs=("serve_tag",))
def loads(model: ModelUnderTest) -> Iterator[Finding]:
    """`tf.saved_model.load` loads the model elsewhere than where it was exported."""
    for op in model.contract.allowed_ops:
        import_library(op)
    model.memory_before_mb = resident_memory_mb()
    try:
        model.loaded  # noqa: B018 - loads on first use
    except Exception as error:
        yield fail(
            f"tf.saved_model.load raises {first_line(error)}",
            "the model was loaded in a process without your code and from another directory: "
            "track every variable, table and asset as an attribute of the exported object, and "
            "export whole files",
        )
