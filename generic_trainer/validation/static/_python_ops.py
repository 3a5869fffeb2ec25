"""Does the graph call back into Python?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._ops import listed, using
from generic_trainer.validation._result import Finding, fail, warn

__all__ = ["python_ops"]

_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@check("python_ops", needs=("serve_tag",))
def python_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """No op calls Python: the function stays behind in the process that exported it."""
    found = using(model.nodes, _PYTHON_OPS, model.contract.allowed_ops)
    served = [node for node in found if node.served]
    remedy = (
        "write tf.py_function / tf.numpy_function in TensorFlow ops, or move it into Transform or "
        "in front of the model"
    )
    if served:
        yield fail(f"works only in the process that exported it: {listed(served)}", remedy)
    elif found:
        yield warn(f"in a function that no signature uses: {listed(found)}", remedy)
