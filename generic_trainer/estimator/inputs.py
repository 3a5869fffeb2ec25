"""`tf.compat.v1.estimator.inputs`: input functions over NumPy arrays and pandas frames."""

from generic_trainer.estimator._tensorflow import estimator_names

__getattr__, __dir__ = estimator_names(__name__, "v1/estimator/inputs")
