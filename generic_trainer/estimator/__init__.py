"""The tf.estimator API, on every TensorFlow that this package supports.

TensorFlow removed `tf.estimator` in 2.16. Code that was written for it needs one line changed::

    from generic_trainer.estimator import tf  # instead of: import tensorflow as tf

    classifier = tf.estimator.DNNClassifier([64, 32], columns, model_dir=fn_args.model_run_dir)
    tf.estimator.train_and_evaluate(classifier, train_spec, eval_spec)

Code of TensorFlow 1 takes `tf1` instead, which has the names of TensorFlow 1, with `tf.contrib`::

    from generic_trainer.estimator import tf1 as tf

or the names are taken from here: `from generic_trainer import estimator`, then
`estimator.DNNClassifier`, `estimator.export.ServingInputReceiver`.

1. The names and their behaviour are those of tf.estimator in TensorFlow 2.15, because the code is:
   the package `tensorflow-estimator`, which still installs. `v1` has those of
   `tf.compat.v1.estimator`, such as a `DNNClassifier` that takes TF 1 optimizers.
2. Keras objects that meet an estimator (optimizers, metrics, losses, models for
   `model_to_estimator`, layers in a `model_fn`) must be of Keras 2: of the `tf.keras` of this `tf`.
   Which Keras TensorFlow itself shows, and so `TF_USE_LEGACY_KERAS`, does not matter.
3. Several workers train together, without a strategy: each on its rows of each batch, gradients
   averaged; worker 0 writes and evaluates. With parameter servers only the chief trains,
   and nothing is evaluated. `train_distribute` works on one worker, such as
   `tf.distribute.MirroredStrategy`, which on several CPU devices needs
   `cross_device_ops=tf.distribute.ReductionToOneDevice()`: its default waits for ever there.
4. TPU estimators and boosted trees are missing: they left the package before 2.15.

Names load on first use. TensorFlow itself is left as it is: other code that imports it in this
process sees no difference (see `_tensorflow`).
"""

from contextlib import AbstractContextManager

from generic_trainer.estimator import experimental, export, inputs, v1
from generic_trainer.estimator._endless import refuse_endless as refuse_endless
from generic_trainer.estimator._exports import copy_newest as copy_newest
from generic_trainer.estimator._exports import copy_newest_export as copy_newest_export
from generic_trainer.estimator._tensorflow import estimator_names, model_to_estimator, tf, tf1
from generic_trainer.estimator._tensorflow import first_behavior as first_behavior

# Beside the names of tf.estimator, which `dir` lists. What copies exports is for `trials`, and so
# are `as_slot` and `refuse_endless`.
__all__ = ["experimental", "export", "inputs", "tf", "tf1", "v1"]


def as_slot() -> AbstractContextManager[None]:
    """Returns a context in which this process trains and evaluates as one slot of a trial."""
    from generic_trainer.estimator import _workers

    return _workers.as_slot()


__getattr__, __dir__ = estimator_names(
    __name__, "v2/estimator", also={"model_to_estimator": model_to_estimator}
)
