"""GenericTrainer: a drop-in `tfx.components.Trainer` that publishes only models that work.

::

    from generic_trainer import GenericTrainer

    trainer = GenericTrainer(
        module_file="my_model.py",
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        schema=schema_gen.outputs["schema"],
    )

Importing this package imports neither TensorFlow nor TFX; each public name loads on first use.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer import (
        cli,
        components,
        data,
        errors,
        estimator,
        executors,
        kfp,
        launchers,
        tracking,
        training,
        trials,
        user_code,
        validation,
        vertex,
    )
    from generic_trainer.cli import run, validate
    from generic_trainer.components import GenericTrainer
    from generic_trainer.launchers import Distribution
    from generic_trainer.validation import ServingContract

__version__ = "0.1.0"
__all__ = [
    "Distribution",
    "GenericTrainer",
    "ServingContract",
    "__version__",
    "cli",
    "components",
    "data",
    "errors",
    "estimator",
    "executors",
    "kfp",
    "launchers",
    "run",
    "tracking",
    "training",
    "trials",
    "user_code",
    "validate",
    "validation",
    "vertex",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cli": "run validate",
        "components": "GenericTrainer",
        "launchers": "Distribution",
        "validation": "ServingContract",
    },
)
