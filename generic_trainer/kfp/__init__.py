"""`train`, the training step in pipelines of Kubeflow (KFP 2), without TFX.

::

    from kfp import dsl
    from generic_trainer.kfp import train

    @dsl.pipeline
    def pipeline(csv: str):
        examples = dsl.importer(artifact_uri=csv, artifact_class=dsl.Dataset)
        trained = train(examples=examples.output, module_file="trainer.py", train_steps=1000)
        push(model=trained.outputs["model"])
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.kfp._component import train

__all__ = ["train"]

__getattr__, __dir__ = lazy_names(__name__, {"_component": "train"})
