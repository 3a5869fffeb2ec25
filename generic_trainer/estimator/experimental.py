"""`tf.estimator.experimental`: early stopping, in-memory evaluation, RNNs, k-means and SDCA."""

from generic_trainer.estimator._tensorflow import estimator_names

__getattr__, __dir__ = estimator_names(
    __name__, "v2/estimator/experimental", "v1/estimator/experimental"
)
