"""Does the model need XLA where it serves?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, warn

__all__ = ["compiled_functions"]


@check("compiled_functions", needs=("serve_tag",))
def compiled_functions(model: ModelUnderTest) -> Iterator[Finding]:
    """No function insists on compilation with XLA, which many servers are built without."""
    compiled = [
        function.signature.name
        for function in model.meta_graph.graph_def.library.function
        if function.attr["_XlaMustCompile"].b
    ]
    compiled += [node.where for node in model.nodes if node.proto.attr["_XlaMustCompile"].b]
    if compiled:
        yield warn(
            f"must be compiled with XLA: {', '.join(compiled[:5])}",
            "export a function without jit_compile=True (in Keras: compile(jit_compile=False))",
        )
