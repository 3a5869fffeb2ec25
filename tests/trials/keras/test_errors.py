"""What is wrong with a trial is said, with what to do."""

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.errors import ConfigurationError, ExportError, ModuleFileError
from generic_trainer.trials.errors import (
    CheckFailedError,
    InvalidDataTypeException,
    InvalidExperimentException,
)
from generic_trainer.trials.keras import SequenceAdapter
from tests.trials.by_hand import X
from tests.trials.conftest import make_fn_args
from tests.trials.keras.one_weight import OneWeight

ROLES = ["build_training_data_loader", "build_validation_data_loader"]


def loading(role, data):
    return type("Loading", (OneWeight,), {role: lambda self: data})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X,), r"must return \(x, y\) .* but got tuple of ndarray$"),
        (("texts", X), r"must return \(x, y\) .* but got tuple of str, ndarray: "),
        (([1.0, 2.0], X), r"lists or dicts of arrays.* but got tuple of list, ndarray: "),
        ((X, None), r"must return .* but got tuple of ndarray, NoneType: "),
        ((np.array(["a", "b", None]), X), r"must return .* but got tuple of ndarray, ndarray: "),
        (([], X), r"must return .* but got tuple of list, ndarray: "),
        ((X, X[1:]), "with as many records each.* ndarray, ndarray: .* are not compatible"),
        ([X, X], "must return .* but got list"),
        (None, "but got NoneType"),
        (iter([(X, X)]), "but got list_iterator"),
    ],
)
def test_what_is_no_data(open_trial, data, message):
    with pytest.raises(InvalidDataTypeException, match=message):
        open_trial(loading(ROLES[0], data))


class Four(OneWeight):
    """Has as many records as a batch."""

    def build_training_data_loader(self):
        return np.ones([4, 1]), np.ones([4, 1])

    build_validation_data_loader = build_training_data_loader


@pytest.mark.parametrize("role", ROLES)
def test_fewer_records_than_a_batch(open_trial, role):
    rows = X if role == "build_training_data_loader" else X[:0]
    small = type("Small", (Four,), {role: lambda self: (rows, rows)})
    with pytest.raises(CheckFailedError, match=rf"{role}: .*, but have {len(rows)}"):
        open_trial(small, size=4)


def test_validation_data_may_be_fewer_than_a_batch(open_trial):
    small = type("Small", (Four,), {"build_validation_data_loader": lambda self: (X, 2 * X)})
    assert open_trial(small, size=4, slots=2).validate()["val_loss"] == pytest.approx(56 / 3)


@pytest.mark.parametrize("role", ROLES)
def test_a_dataset_that_was_not_wrapped(open_trial, role):
    data = tf.data.Dataset.from_tensor_slices((X, X)).batch(1)
    with pytest.raises(CheckFailedError, match="Please pass your datasets"):
        open_trial(loading(role, data))


def test_validation_data_that_repeat_forever(open_trial):
    def load(self):
        return self.context.wrap_dataset(tf.data.Dataset.from_tensors((X, X)).repeat())

    with pytest.raises(CheckFailedError, match="repeats forever"):
        open_trial(type("Endless", (OneWeight,), {ROLES[1]: load}))


def test_a_sequence_without_batches():
    with pytest.raises(ValueError, match="non-zero length"):
        SequenceAdapter([])


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras 3 says it as well
@pytest.mark.parametrize(("role", "method"), list(zip(ROLES, ["train", "validate"], strict=True)))
def test_a_dataset_without_batches(open_trial, role, method):
    def load(self):
        return self.context.wrap_dataset(tf.data.Dataset.from_tensors((X, X)).take(0))

    trial = open_trial(type("Nothing", (OneWeight,), {role: load}))
    with pytest.raises(ModuleFileError, match=f"{role}: the .* data have no batch"):
        trial.train(1) if method == "train" else trial.validate()


class Own(tf.keras.Sequential):
    def compile(self, rate):
        self.rate = rate


@pytest.mark.parametrize(
    ("build", "kind", "message"),
    [
        (lambda _, model: model.compile("sgd"), CheckFailedError, r"call wrap_model\(\.\.\.\)"),
        (lambda wrap, model: wrap(model), CheckFailedError, r"call model\.compile\(\.\.\.\)"),
        (lambda wrap, _: wrap(Own()).compile(rate=0.1), CheckFailedError, "wrap_optimizer"),
        (lambda wrap, model: wrap(model).fit(X, X), InvalidExperimentException, r"Must call \.co"),
    ],
)
def test_what_build_model_has_to_call(open_trial, build, kind, message):
    def build_model(self):
        build(self.context.wrap_model, self.make_model())

    with pytest.raises(kind, match=message):
        open_trial(type("Building", (OneWeight,), {"build_model": build_model}))


def test_class_weights_with_a_gap(open_trial):
    class Gap(OneWeight):
        def build_model(self):
            self.context.configure_fit(class_weight={1: 2.0})
            super().build_model()

    with pytest.raises(ConfigurationError, match="without a gap"):
        open_trial(Gap).train(1)


def test_a_model_that_nothing_can_be_served_of(open_trial, tmp_path):
    class Silent(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(1)

        def train_step(self, data):
            return {"loss": tf.reduce_mean(self.dense(data[0]))}

        test_step = train_step

    trial = open_trial(type("Nothing", (OneWeight,), {"make_model": lambda self: Silent()}))
    trial.train(1)
    with pytest.raises(ExportError, match=r"Silent cannot be called .* Return the outputs"):
        trial.export(make_fn_args(tmp_path))


def test_a_model_of_another_keras(open_trial, caplog):
    class Older(OneWeight):
        def build_model(self):
            tf.keras.optimizers.SGD(learning_rates=0.1)

    with pytest.raises((TypeError, ValueError)):
        open_trial(Older)
    assert ("needs the environment variable TF_USE_LEGACY_KERAS=1" in caplog.text) == (
        tf.keras.Model.__module__.startswith("keras.")
    )
