"""`tf.compat.v1.estimator`: the same names, with the classes for TF 1 optimizers."""

from generic_trainer.estimator import experimental, export, inputs
from generic_trainer.estimator._tensorflow import estimator_names, model_to_estimator_v1

__all__ = ["experimental", "export", "inputs"]

__getattr__, __dir__ = estimator_names(
    __name__, "v1/estimator", also={"model_to_estimator": model_to_estimator_v1}
)
