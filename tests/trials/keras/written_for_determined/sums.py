"""Numbers and their sum: a context of one's own, two inputs that are no arrays, a graph session."""

import numpy as np
import tensorflow as tf

import generic_trainer.trials as det
from generic_trainer.trials import keras
from generic_trainer.trials.horovod import hvd

# Called once for each batch, by a callback of Keras' own.
seen = []


class CountingContext(keras.TFKerasTrialContext):
    def __init__(self, env: det.EnvContext, hvd_config):
        super().__init__(env, hvd_config)
        self.rate = env.hparams["learning_rate"]

    def optimizer(self):
        return self.wrap_optimizer(tf.keras.optimizers.SGD(self.rate))


class SumsTrial(keras.TFKerasTrial):
    trial_context_class = CountingContext

    def __init__(self, trial_context: CountingContext):
        tf.compat.v1.disable_eager_execution()
        self.trial_context = trial_context
        assert trial_context.env.experiment_config["data"] == {}
        assert trial_context.env.det_trial_id == "1"
        assert trial_context.hvd_config.aggregation_frequency == 1
        assert (hvd.rank(), hvd.size(), hvd.local_rank()) == (0, 1, 0)

    def session_config(self):
        return tf.compat.v1.ConfigProto(allow_soft_placement=True)

    def build_model(self):
        first, second = tf.keras.Input([1], name="first"), tf.keras.Input([1], name="second")
        both = tf.keras.layers.Concatenate()([first, second])
        outputs = tf.keras.layers.Dense(1, kernel_initializer="zeros")(both)
        model = self.trial_context.wrap_model(tf.keras.Model([first, second], outputs))
        model.compile(self.trial_context.optimizer(), "mse")
        return model

    def keras_callbacks(self):
        return [
            tf.keras.callbacks.LambdaCallback(
                on_batch_end=lambda batch, logs: seen.append(logs["loss"]),
                on_train_begin=lambda logs: seen.clear(),
            ),
            keras.TFKerasTensorBoard(update_freq=1000, profile_batch=0),
        ]

    def build_training_data_loader(self):
        first, second = [[n / 8] for n in range(8)], [[1 - n / 8] for n in range(8)]
        return [first, second], np.array([[1.0]] * 8)

    def build_validation_data_loader(self):
        return self.build_training_data_loader()
