"""A trial that is saved and restored goes on as the straight one."""

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.errors import TrainingError
from generic_trainer.trials.errors import CheckFailedError
from generic_trainer.trials.keras import SequenceAdapter, callbacks
from tests.trials.by_hand import X
from tests.trials.keras.one_weight import OneWeight, WithMomentum


class Deferred(tf.keras.Model):
    """Has no variables before it has seen data."""

    def __init__(self):
        super().__init__()
        self.normalization = tf.keras.layers.BatchNormalization()
        self.dropout = tf.keras.layers.Dropout(0.5)
        self.dense = tf.keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return self.dense(
            self.dropout(self.normalization(inputs, training=training), training=training)
        )


class Subclassed(OneWeight):
    def make_model(self):
        return Deferred()

    def make_optimizer(self):
        return tf.keras.optimizers.Adam(0.01)


class InParts(tf.keras.Model):
    """Has no `call`: its own step trains its parts, on records without labels."""

    def __init__(self):
        super().__init__()
        self.generator = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
        self.critic = tf.keras.Sequential([tf.keras.layers.Dense(1)])

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second

    def loss_of(self, x):
        return tf.reduce_mean(tf.square(self.critic(self.generator(x)) - 2 * x))

    def train_step(self, x):
        for part, optimizer in ((self.generator, self.first), (self.critic, self.second)):
            with tf.GradientTape() as tape:
                loss = self.loss_of(x)
            weights = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}

    def test_step(self, x):
        return {"loss": self.loss_of(x)}


class Adversarial(OneWeight):
    def build_model(self):
        model = self.context.wrap_model(InParts())
        model.compile(*(self.context.wrap_optimizer(tf.keras.optimizers.Adam()) for _ in range(2)))

    def build_training_data_loader(self):
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(X).batch(2))

    build_validation_data_loader = build_training_data_loader


class Shuffled(Subclassed):
    def build_training_data_loader(self):
        data = tf.data.Dataset.from_tensor_slices((X, 2 * X)).shuffle(3).batch(2)
        return self.context.wrap_dataset(data)


class ShuffledArrays(Subclassed):
    def build_training_data_loader(self):
        self.context.configure_fit(shuffle=True)
        return X, 2 * X


class Cached(Subclassed):
    def build_training_data_loader(self):
        @self.context.experimental.cache_train_dataset("x", "1", shuffle=True)
        def make():
            return tf.data.Dataset.from_tensor_slices((X, 2 * X))

        return make().batch(2)


class Noisy(tf.keras.utils.Sequence):
    """Draws from NumPy's global generator, as data augmentation does."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        x = X[index : index + 1] + np.random.normal(size=[1, 1])
        return x, 2 * x


class Augmented(Subclassed):
    def build_training_data_loader(self):
        return SequenceAdapter(Noisy(), workers=self.context.get_hparam("workers"))


class Reordered(tf.keras.utils.Sequence):
    """Shuffles its batches between epochs, and draws in between."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(3)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        x = X[self.order[index]][None] + np.random.normal()
        return x, 2 * x

    def on_epoch_end(self):
        np.random.shuffle(self.order)


class Shuffling(Subclassed):
    def build_training_data_loader(self):
        return Reordered()


class Generated(Subclassed):
    """A generator draws the order of its records and their noise."""

    def build_training_data_loader(self):
        spec = tf.TensorSpec([1])
        data = tf.data.Dataset.from_generator(self.rows, output_signature=(spec, spec))
        return self.context.wrap_dataset(data.batch(2))

    def rows(self):
        for number in np.random.permutation(3):
            x = X[number] + np.random.normal(size=[1])
            yield x, 2 * x

    build_validation_data_loader = build_training_data_loader


class Mapped(Subclassed):
    """Its loader draws an order, and a function of NumPy the noise of each record."""

    def build_training_data_loader(self):
        def noisy(x):
            return x + np.random.normal(size=[1]).astype("float32")

        def both(x):
            x = tf.ensure_shape(tf.numpy_function(noisy, [x], tf.float32), [1])
            return x, 2 * x

        data = tf.data.Dataset.from_tensor_slices(X[np.random.permutation(3)]).map(both)
        return self.context.wrap_dataset(data.batch(2))

    build_validation_data_loader = build_training_data_loader


class Schedule(WithMomentum):
    def make_optimizer(self):
        rate = tf.keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
        return tf.keras.optimizers.SGD(rate)


class Drawing(Deferred):
    """Draws from TensorFlow's global generator in its own training step."""

    def call(self, inputs, training=None):
        noise = tf.random.get_global_generator().normal([])
        return super().call(inputs + noise if training else inputs, training=training)


class Drawn(Subclassed):
    def make_model(self):
        return Drawing()


class Stateful(OneWeight):
    """Keeps a state per row from batch to batch, which needs batches of a size that is known."""

    def make_model(self):
        layers = [tf.keras.layers.GRU(2, stateful=True), tf.keras.layers.Dense(1)]
        return tf.keras.Sequential([tf.keras.Input(batch_shape=[1, 3, 1]), *layers])

    def build_training_data_loader(self):
        return np.tile(X[:, None], [1, 3, 1]), 2 * X

    build_validation_data_loader = build_training_data_loader


@pytest.mark.parametrize(
    "trial_class",
    [
        Schedule,
        Adversarial,
        Shuffled,
        ShuffledArrays,
        Shuffling,
        Drawn,
        Stateful,
    ],
)
def test_losses_go_on(resumed, trial_class):
    expected, found = resumed(trial_class)
    assert found == expected


@pytest.mark.parametrize("trial_class", [Generated, Mapped])
def test_what_training_data_draw_goes_on_beside_validations_that_draw(resumed, trial_class):
    def batch(trial):
        return trial.train(1)["loss"], trial.validate()

    expected, found = resumed(trial_class, before=4, after=5, batch=batch)
    assert found == expected


@pytest.mark.parametrize(("workers", "before"), [(0, 5), (1, 3)])
def test_what_a_sequence_draws_goes_on_although_it_is_read_ahead(resumed, workers, before):
    expected, found = resumed(Augmented, before=before, hparams={"workers": workers})
    assert found == expected


def test_a_cached_dataset_goes_on(resumed, tmp_path_factory):
    layer = {"type": "shared_fs", "host_storage_path": str(tmp_path_factory.mktemp("cache"))}
    config = {"data_layer": layer}
    expected, found = resumed(Cached, before=3, after=5, size=2, config=config)
    assert found == expected


def test_callbacks_go_on(open_trial, tmp_path):
    def opened(**at):
        stopping = callbacks.EarlyStopping(patience=3, restore_best_weights=True)
        return open_trial(callbacks=[stopping], hparams={"rate": 0.0}, **at)

    first = opened()
    for _ in range(3):  # the first validation is the best, two have waited
        first.train(1)
        first.validate()
    assert not first.stop_requested
    first.save(str(tmp_path))
    second = opened(batches_trained=3, checkpoint_dir=str(tmp_path))
    second.validate()
    assert second.stop_requested


def test_a_checkpoint_of_another_model(open_trial, tmp_path):
    open_trial().save(str(tmp_path))

    class Wider(OneWeight):
        def make_model(self):
            return tf.keras.Sequential([tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])

    with pytest.raises(TrainingError, match="does not fit the model and the data of this run"):
        open_trial(Wider, batches_trained=1, checkpoint_dir=str(tmp_path)).train(1)


def test_a_checkpoint_of_other_callbacks(open_trial, tmp_path):
    class Kept(callbacks.Callback):
        pass

    first = open_trial(callbacks=[Kept()])
    first.train(1)
    first.save(str(tmp_path))
    with pytest.raises(CheckFailedError, match=r"written with the callbacks \['Kept'\]"):
        open_trial(batches_trained=1, checkpoint_dir=str(tmp_path)).train(1)
