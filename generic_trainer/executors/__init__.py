"""The executor behind the component.

`generic_trainer.executors.GenericTrainerExecutor` is a public import path: Kubeflow and Vertex get
it as a string inside a compiled pipeline.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.executors._executor import GenericTrainerExecutor

__all__ = ["FN_ARGS_FACTORY", "GenericTrainerExecutor"]

# Import path of what builds TFX's `FnArgs`, for a `Job`: workers on other machines import it. Who
# makes a job does not, because Beam and TensorFlow Model Analysis would come with it.
FN_ARGS_FACTORY = f"{__name__}._fn_args:make_fn_args"

__getattr__, __dir__ = lazy_names(__name__, {"_executor": "GenericTrainerExecutor"})
