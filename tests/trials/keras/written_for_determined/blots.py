"""Two networks against each other: a model with a `train_step` and optimizers of its own."""

import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.keras import layers

from generic_trainer.trials.keras import InputData, TFKerasTrial, TFKerasTrialContext

HELD_OUT = 297


class Blots(tf.keras.Model):
    def __init__(self, noise):
        super().__init__()
        self.noise = noise
        self.generator = tf.keras.Sequential(
            [tf.keras.Input((noise,)), layers.Dense(64, "sigmoid")]
        )
        self.critic = tf.keras.Sequential([tf.keras.Input((64,)), layers.Dense(1)])
        self.doubt = tf.keras.losses.BinaryCrossentropy(from_logits=True)

    def compile(self, generator_optimizer, critic_optimizer):
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.critic_optimizer = critic_optimizer

    def call(self, inputs, training=None):
        pass

    def losses_of(self, real, training):
        fake = self.generator(tf.random.normal([tf.shape(real)[0], self.noise]), training=training)
        believed, known = self.critic(fake, training=training), self.critic(real, training=training)
        caught = self.doubt(tf.zeros_like(believed), believed)
        return self.doubt(tf.ones_like(believed), believed), caught + self.doubt(
            tf.ones_like(known), known
        )

    def train_step(self, real):
        with tf.GradientTape() as forging, tf.GradientTape() as judging:
            forged, judged = self.losses_of(real, training=True)
        for network, optimizer, gradients in (
            (self.generator, self.generator_optimizer, lambda of: forging.gradient(forged, of)),
            (self.critic, self.critic_optimizer, lambda of: judging.gradient(judged, of)),
        ):
            weights = network.trainable_variables
            optimizer.apply_gradients(zip(gradients(weights), weights, strict=True))
        return {"forged": forged, "judged": judged}

    def test_step(self, real):
        forged, judged = self.losses_of(real, training=False)
        return {"forged": forged, "judged": judged}


class BlotsTrial(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    def build_model(self) -> tf.keras.models.Model:
        model = self.context.wrap_model(Blots(self.context.get_hparam("noise")))
        rate = self.context.get_hparam("learning_rate")
        model.compile(
            generator_optimizer=self.context.wrap_optimizer(tf.keras.optimizers.Adam(rate)),
            critic_optimizer=self.context.wrap_optimizer(tf.keras.optimizers.Adam(rate)),
        )
        return model

    def build_training_data_loader(self) -> InputData:
        digits = self.context.wrap_dataset(self.digits(slice(None, -HELD_OUT)))
        return digits.shuffle(1500, seed=self.context.get_trial_seed()).batch(
            self.context.get_per_slot_batch_size()
        )

    def build_validation_data_loader(self) -> InputData:
        return self.context.wrap_dataset(self.digits(slice(-HELD_OUT, None))).batch(99)

    def digits(self, rows):
        images = load_digits().data[rows] / 16
        return tf.data.Dataset.from_tensor_slices(images.astype("float32"))
