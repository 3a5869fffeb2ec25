"""`tf.estimator.export`: serving input receivers, and the exported outputs of a model_fn."""

from generic_trainer.estimator._tensorflow import estimator_names

__getattr__, __dir__ = estimator_names(__name__, "v2/estimator/export")
