"""The one weight of `by_hand`, as an estimator."""

from generic_trainer.estimator import tf
from generic_trainer.trials.estimator import EstimatorTrial
from tests.trials.by_hand import RATE, X

tf1 = tf.compat.v1


def examples():
    """Three records, (1, 2, 3) · 2 → (2, 4, 6)."""
    return tf.data.Dataset.from_tensor_slices(({"x": X}, 2 * X))


class OneWeight(EstimatorTrial):
    """Starts at w = 0; trains on batches of one record, validates on batches of two and one."""

    @property
    def rate(self):
        return self.context.get_hparams().get("rate", RATE)

    def make_optimizer(self):
        return tf1.train.GradientDescentOptimizer(self.rate)

    def metrics(self, outputs, labels):
        return {"error": tf1.metrics.mean_absolute_error(labels, outputs)}

    def model_fn(self, features, labels, mode):
        w = tf1.get_variable("w", [1, 1], initializer=tf1.zeros_initializer())
        outputs = features["x"] @ w
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, {"outputs": outputs})
        loss = tf.reduce_mean(tf.square(outputs - labels))
        if mode == tf.estimator.ModeKeys.EVAL:
            metrics = self.metrics(outputs, labels)
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        tf1.summary.scalar("weight", tf.squeeze(w))
        tf1.summary.histogram("weights", w)
        optimizer = self.context.wrap_optimizer(self.make_optimizer())
        train_op = optimizer.minimize(loss, tf1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def build_estimator(self):
        return tf.estimator.Estimator(self.model_fn)

    def train_data(self):
        data = self.context.wrap_dataset(examples())
        if self.context.get_data_config().get("shuffle"):
            data = data.shuffle(3)
        return data.batch(self.context.get_per_slot_batch_size())

    def train_hooks(self):
        return []

    def build_train_spec(self):
        return tf.estimator.TrainSpec(self.train_data, hooks=self.train_hooks())

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(lambda: examples().batch(2), steps=None)

    def build_serving_input_receiver_fns(self):
        def receive():
            x = tf1.placeholder(tf.float32, [None, 1], name="x")
            return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})

        return {"plain": receive}


class WithMomentum(OneWeight):
    """Has a slot variable, which a checkpoint must keep."""

    def make_optimizer(self):
        return tf1.train.MomentumOptimizer(self.rate, 0.5)


class WithoutReceivers(OneWeight):
    def build_serving_input_receiver_fns(self):
        return {}


class NoPredictions(WithoutReceivers):
    """Nothing can be served of it."""

    def model_fn(self, features, labels, mode):
        if mode == tf.estimator.ModeKeys.PREDICT:
            raise KeyError("labels")
        return super().model_fn(features, labels, mode)
