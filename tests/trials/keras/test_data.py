"""The five kinds of data."""

import time

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.trials.errors import CheckFailedError
from generic_trainer.trials.keras import ArrayLikeAdapter, InMemorySequence, SequenceAdapter
from tests.trials.by_hand import X, steps
from tests.trials.keras.one_weight import OneWeight, weight_layer

BY_HAND = [loss for _, loss in steps(7)]


class Loader(OneWeight):
    """Returns the data that the test has put into the configuration."""

    def build_training_data_loader(self):
        return self.context.get_data_config()["make"](self.context, X, 2 * X)

    build_validation_data_loader = build_training_data_loader


class Batches(tf.keras.utils.Sequence):
    """The records one by one; notes which were read, and when an epoch ends."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.read = x, y, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.read.append(index)
        return self.x[index : index + 1], self.y[index : index + 1]

    def on_epoch_end(self):
        self.read.append("end")


def dataset(context, *parts):
    return context.wrap_dataset(tf.data.Dataset.from_tensor_slices(parts).batch(1))


KINDS = {
    "arrays": lambda context, x, y: (x, y),
    "double precision": lambda context, x, y: (x.astype(np.float64), y.astype(np.float64)),
    "weights": lambda context, x, y: (x, y, np.ones(3)),
    "list": lambda context, x, y: ([x], [y]),
    "dataset": dataset,
    "sequence": lambda context, x, y: Batches(x, y),
    "arrays as a sequence": lambda context, x, y: ArrayLikeAdapter(x, y, batch_size=1),
    "adapter": lambda context, x, y: SequenceAdapter(Batches(x, y)),
    "main thread": lambda context, x, y: SequenceAdapter(Batches(x, y), workers=0),
    "threads": lambda context, x, y: SequenceAdapter(Batches(x, y), workers=3, max_queue_size=2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_training_follows_the_records_for_ever_and_validation_is_one_pass(open_trial, kind):
    trial = open_trial(Loader, data={"make": KINDS[kind]})
    assert [trial.validate()["val_loss"] for _ in range(2)] == pytest.approx([56 / 3] * 2)
    assert [trial.train(1)["loss"] for _ in range(7)] == pytest.approx(BY_HAND, rel=1e-5)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_validations_change_no_number_that_a_sequence_draws(open_trial, threads):
    drawn = []

    class Drawing(Batches):
        def __getitem__(self, index):
            time.sleep(0.01)  # so that batches are still read when a validation begins
            drawn.append(np.random.random())
            return super().__getitem__(index)

    class Noisy(Batches):
        def __getitem__(self, index):
            np.random.random()
            return super().__getitem__(index)

    class Both(Loader):
        def build_training_data_loader(self):
            self.context.configure_fit(workers=threads)
            return Drawing(np.repeat(X, 20, 0), np.repeat(X, 20, 0))

        def build_validation_data_loader(self):
            return Noisy(X, X)

    trial = open_trial(Both)
    for _ in range(4):
        trial.train(5)
        trial.validate()
    assert len(drawn) >= 20
    assert drawn == np.random.RandomState(3).random(len(drawn)).tolist()


def test_batches_of_a_dataset_may_differ_in_size(open_trial):
    trial = open_trial(Loader, data={"make": lambda *given: dataset(*given).rebatch(2)})
    assert trial.validate()["val_loss"] == pytest.approx(56 / 3)


def test_named_inputs(open_trial):
    class Named(Loader):
        def make_model(self):
            inputs = {name: tf.keras.Input([1], name=name) for name in ("b", "a")}
            hidden = tf.keras.layers.Subtract()([inputs["b"], inputs["a"]])
            return tf.keras.Model(inputs, weight_layer()(hidden))

    trial = open_trial(Named, data={"make": lambda _, x, y: ({"a": x, "b": 2 * x}, y)})
    assert [trial.train(1)["loss"] for _ in range(7)] == pytest.approx(BY_HAND, rel=1e-5)


def test_several_inputs_and_outputs(open_trial):
    class Several(Loader):
        def build_model(self):
            inputs = [tf.keras.Input([1]), tf.keras.Input([1])]
            model = tf.keras.Model(inputs, [*map(weight_layer(), inputs)])
            model = self.context.wrap_model(model)
            model.compile("sgd", ["mse", "mae"])

    trial = open_trial(Several, size=3, data={"make": lambda _, x, y: ([x, -x], [y, -y])})
    assert trial.train(1)["loss"] == pytest.approx(56 / 3 + 4, rel=1e-5)


def test_texts(open_trial):
    class Texts(Loader):
        def build_model(self):
            words = tf.keras.layers.StringLookup(vocabulary=["a", "b"])
            layers = [words, tf.keras.layers.Embedding(3, 1), tf.keras.layers.Flatten()]
            made = tf.keras.Sequential([tf.keras.Input([1], dtype="string"), *layers])
            model = self.context.wrap_model(made)
            model.compile("sgd", "mse")

    texts = np.array([["a"], ["b"], ["z"]], object)
    trial = open_trial(Texts, data={"make": lambda _, x, y: (texts, y)})
    assert trial.train(3)["loss"] > 0


@pytest.mark.parametrize("kind", ["arrays", "dataset", "sequence"])
def test_sample_weights_count(open_trial, kind):
    weights = np.array([1.0, 0.0, 2.0], np.float32)
    make = {
        "arrays": lambda context, *parts: (*parts, weights),
        "dataset": lambda context, *parts: dataset(context, *parts, weights),
        "sequence": lambda context, x, y: Weighted(x, y),
    }[kind]

    class Weighted(Batches):
        def __getitem__(self, index):
            return (*super().__getitem__(index), weights[index : index + 1])

    trial = open_trial(Loader, data={"make": make}, hparams={"rate": 0.0})
    assert [trial.train(1)["loss"] for _ in range(3)] == pytest.approx([4, 0, 72])


@pytest.mark.parametrize("one_hot", [False, True])
def test_class_weights_count_in_training_alone(open_trial, one_hot):
    y = np.array([0, 1, 1])

    class Classes(OneWeight):
        def build_model(self):
            self.context.configure_fit(class_weight={0: 1.0, 1: 10.0})
            model = tf.keras.Sequential(
                [
                    tf.keras.Input([1]),
                    tf.keras.layers.Dense(2, "softmax", kernel_initializer="zeros"),
                ]
            )
            loss = "categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy"
            model = self.context.wrap_model(model)
            model.compile(tf.keras.optimizers.SGD(0.0), loss)

        def build_training_data_loader(self):
            return X, np.eye(2)[y] if one_hot else y

        build_validation_data_loader = build_training_data_loader

    trial = open_trial(Classes)
    losses = [trial.train(1)["loss"] for _ in range(3)]
    assert losses == pytest.approx(np.log(2) * np.array([1, 10, 10]), rel=1e-5)
    assert trial.validate()["val_loss"] == pytest.approx(np.log(2), rel=1e-5)


def test_arrays_are_shuffled_on_request(open_trial):
    class Drawn(Loader):
        def __init__(self, context):
            super().__init__(context)
            context.configure_fit(shuffle=context.get_hparam("shuffle"))

    def losses(shuffle, seen=6):
        hparams = {"rate": 0.0, "shuffle": shuffle}
        trial = open_trial(Drawn, data={"make": lambda context, x, y: (x, y)}, hparams=hparams)
        return [round(float(trial.train(1)["loss"]), 3) for _ in range(seen)]

    in_order, shuffled = losses(False), losses(True, 30)
    epochs = [tuple(shuffled[start : start + 3]) for start in range(0, 30, 3)]
    assert in_order[:3] == in_order[3:]
    assert {tuple(sorted(epoch)) for epoch in epochs} == {tuple(sorted(in_order[:3]))}
    assert len({*epochs}) > 1
    assert losses(True, 30) == shuffled


def test_batches_of_a_sequence_may_differ_in_length(open_trial):
    class Growing(Batches):
        def __getitem__(self, index):
            return np.ones([2, index + 1, 1], np.float32), np.ones([2, 1], np.float32)

    class Pooled(Loader):
        def make_model(self):
            pool = tf.keras.layers.GlobalAveragePooling1D()
            return tf.keras.Sequential([pool, *super().make_model().layers])

    trial = open_trial(Pooled, data={"make": lambda context, x, y: Growing(x, y)})
    assert trial.train(5)["loss"] > 0
    assert trial.validate()["val_loss"] > 0


def test_validation_may_have_fewer_steps(open_trial):
    class Short(Loader):
        def __init__(self, context):
            super().__init__(context)
            context.configure_fit(validation_steps=2)

    trial = open_trial(Short, data={"make": dataset})
    assert trial.validate()["val_loss"] == pytest.approx((4 + 16) / 2)


def test_arrays_as_a_sequence():
    y, weights = np.arange(5), np.ones(5)
    batches = ArrayLikeAdapter({"a": y, "b": -y}, [y, y], 2, weights)
    assert len(batches) == 3
    x, labels, weight = batches[2]
    assert x.keys() == {"a", "b"}
    assert [list(part) for part in (x["b"], *labels, weight)] == [[-4], [4], [4], [1]]
    assert len(ArrayLikeAdapter(y, y, 2, drop_leftovers=True)) == 2
    with pytest.raises(CheckFailedError, match="as many records"):
        ArrayLikeAdapter(y, y[1:], 2)
    with pytest.raises(CheckFailedError, match="too large"):
        InMemorySequence(y, y, 6)
