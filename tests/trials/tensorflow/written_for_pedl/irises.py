"""Irises by an estimator, whose methods take hyperparameters."""

from sklearn.datasets import load_iris

from generic_trainer.estimator import tf
from generic_trainer.trials.tensorflow import EstimatorTrial, wrap_dataset, wrap_optimizer

FEATURES, LABELS = load_iris(return_X_y=True)


def read(size, rows):
    data = tf.data.Dataset.from_tensor_slices(({"x": FEATURES[rows]}, LABELS[rows]))
    return wrap_dataset(data.shuffle(150, seed=1).batch(size))


class IrisTrial(EstimatorTrial):
    def build_estimator(self, hparams):
        optimizer = wrap_optimizer(tf.compat.v1.train.AdamOptimizer(hparams["learning_rate"]))
        columns = [tf.feature_column.numeric_column("x", [4])]
        return tf.compat.v1.estimator.DNNClassifier([10], columns, n_classes=3, optimizer=optimizer)

    def build_train_spec(self, hparams):
        rows = slice(0, None, 2)
        return tf.estimator.TrainSpec(lambda: read(hparams["batch_size"], rows), max_steps=7)

    def build_validation_spec(self, hparams):
        rows = slice(1, None, 2)
        return tf.estimator.EvalSpec(lambda: read(hparams["batch_size"], rows), steps=None)

    def build_serving_input_receiver_fns(self, hparams):
        spec = {"x": tf.io.FixedLenFeature([4], tf.float32)}
        return {"iris": tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)}
