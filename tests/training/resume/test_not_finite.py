"""A step that makes weights NaN ends the fit, and the error names what is to blame.

Most models run eagerly, as tracing them would take most of the time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.errors import ConfigurationError, TrainingError, WorkerLostError
from generic_trainer.training import restore_weights, resume_callbacks
from tests.training.resume.fits import Ended, ending, fn_args, plain, values

ROWS, SIZE, BAD = 64, 8, 45  # row 5 of batch 6


def data(value: float = 1.0, columns: Any = 1) -> tf.data.Dataset:
    """Returns 8 batches of three features and a label, all about 1, but for columns of one row."""
    rows = np.random.default_rng(3).uniform(0.5, 1.5, [ROWS, 4]).astype("float32")
    rows[BAD, columns] = value
    return tf.data.Dataset.from_tensor_slices((rows[:, :3], rows[:, 3:])).batch(SIZE)


def model_of(
    keras: Any,
    before: Callable[[Any], Any] = tf.identity,
    after: Callable[[Any], Any] = tf.identity,
    loss: Any = "mse",
    rate: float = 0.01,
    **compiled: Any,
) -> Any:
    class Own(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return before(inputs) if self.name == "before" else after(inputs)

    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense(1, use_bias=False, name="dense")
    model = plain(keras)([Own(name="before"), dense, Own(name="after")])
    how = {"optimizer": keras.optimizers.SGD(rate), "run_eagerly": True, **compiled}
    model.compile(**how, loss=loss)
    return model


def scaled(keras: Any, **arguments: Any) -> Any:
    """Returns an optimizer that leaves out steps whose gradient is not finite."""
    scaling = getattr(keras, "mixed_precision", keras.optimizers).LossScaleOptimizer
    return scaling(keras.optimizers.SGD(0.01), **arguments)


def fit(
    directory: Path, model: Any, x: Any, *others: Any, on_nan: str = "error", **how: Any
) -> Any:
    resumed = resume_callbacks(fn_args(directory), every_steps=3, on_nan=on_nan)
    return model.fit(x, verbose=0, callbacks=[*others, *resumed], **how)


def explained(directory: Path, make: Callable[[], Any], x: Any, **how: Any) -> str:
    """Returns the error of the second attempt, which an executor would start after the first."""
    with pytest.raises(WorkerLostError):
        fit(directory, make(), x, **how)
    with pytest.raises(TrainingError) as error:
        fit(directory, make(), x, **how)
    return str(error.value)


ROW = "batch 6 of epoch 1 (step 6): row 5 of 8 (the first is 0) to blame."
INPUT = (ROW, "column 1 of features", "layer 'before'")
# Value, its columns, arguments of the model, words of the error.
FAULTS: list[tuple[float, Any, dict[str, Any], tuple[str, ...]]] = [
    (-np.inf, 1, {"run_eagerly": False}, INPUT),
    (np.nan, 1, {}, INPUT),
    (0.0, 2, {"before": tf.math.log}, (ROW, "it is column 2 of features", "layer 'before'")),
    (
        -1.0,  # a label out of range
        3,
        {"loss": lambda y, p: tf.math.log(y) * p**2},
        (ROW, "it is label", "label = [-1.0]", "The loss is not finite"),
    ),
    (
        0.0,
        [0, 1, 2],
        {"after": lambda z: tf.sqrt(tf.abs(z))},
        (ROW, "it is features", "The loss is finite; the gradient is not"),
    ),
    (1.0, 1, {"rate": 300.0}, ("no single row", "the largest weight has grown from", "Lower the")),
    (
        1.0,
        1,
        {"loss": lambda y, p: (p - y) ** 2 / (y - y), "run_eagerly": False},
        ("batch 1 of epoch 1 (step 1): no single row is to blame", "The loss is not finite"),
    ),
]


def test_an_error_names_what_is_to_blame(tmp_path: Path, keras: Any) -> None:
    for number, (value, columns, model, words) in enumerate(FAULTS):
        x, directory = data(value, columns), tmp_path / str(number)
        message = explained(directory, lambda model=model: model_of(keras, **model), x)
        assert [word for word in words if word not in message] == [], message


def test_features_are_named_in_a_later_epoch_of_a_resumed_fit(tmp_path: Path, keras: Any) -> None:
    def make() -> Any:
        inputs = {name: keras.Input([1], name=name) for name in ("age", "fare")}
        joined = keras.layers.Concatenate()([*inputs.values()])
        # Of many units, or a Dropout of Keras 2 may by chance leave out all that are NaN.
        hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(8)(joined))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile("adam", "mse", run_eagerly=True)
        return model

    keras.utils.set_random_seed(1)
    x = data(np.nan).map(lambda x, y: ({"age": x[:, :1], "fare": x[:, 1:2]}, y)).repeat()
    how = {"epochs": 2, "steps_per_epoch": 4}
    with pytest.raises(Ended):
        fit(tmp_path, make(), x, ending(keras, 4), **how)
    message = explained(tmp_path, make, x, **how)
    assert "batch 2 of epoch 2 (step 6): row 5 of 8" in message
    assert "it is features 'fare'" in message


def test_no_checkpoint_has_weights_that_are_not_finite(tmp_path: Path, keras: Any) -> None:
    faulty, args = {"after": lambda z: tf.sqrt(tf.abs(z))}, fn_args(tmp_path)
    with pytest.raises(WorkerLostError, match="After 6 steps"):  # its loss is finite
        callbacks = resume_callbacks(args, every_steps=1)
        model_of(keras, **faulty).fit(data(0.0, [0, 1, 2]), verbose=0, callbacks=callbacks)
    model = model_of(keras)
    model(tf.ones([1, 3]))
    assert restore_weights(model, args)
    assert np.isfinite(values(model)[0]).all()


def test_means_of_a_batch_normalization_are_weights(tmp_path: Path, keras: Any) -> None:
    def make() -> Any:
        normalization = keras.layers.BatchNormalization(name="normalization")
        model = keras.Sequential([keras.Input([3]), normalization, keras.layers.Dense(1)])
        model.compile(scaled(keras), "mse", run_eagerly=True)  # leaves such steps out
        return model

    assert ROW in explained(tmp_path, make, data(np.nan))


def test_rows_that_cannot_be_found_end_the_first_attempt(tmp_path: Path, keras: Any) -> None:
    faulty = model_of(keras, steps_per_execution=2, run_eagerly=False)
    with pytest.raises(TrainingError, match="Rows can be named only if one worker") as error:
        fit(tmp_path, faulty, data(np.nan))
    assert not isinstance(error.value, WorkerLostError)


def test_the_place_of_a_value_in_a_row_has_all_its_indices(tmp_path: Path, keras: Any) -> None:
    def make() -> Any:
        layers = keras.layers.Flatten(), keras.layers.Dense(1)
        model = keras.Sequential([keras.Input([4, 5]), *layers])
        model.compile("sgd", "mse", run_eagerly=True)
        return model

    images = np.ones([ROWS, 4, 5], "float32")
    images[BAD, 2, 3] = np.nan
    x = tf.data.Dataset.from_tensor_slices((images, images[:, 0, :1])).batch(SIZE)
    assert "it is position [2, 3] of features (nan)" in explained(tmp_path, make, x)


@pytest.mark.parametrize("size", [1, SIZE])
def test_values_are_shown_if_no_row_is_good(tmp_path: Path, keras: Any, size: int) -> None:
    x = data().unbatch().concatenate(data(np.nan).unbatch().skip(BAD).take(1).repeat(size))
    error = explained(tmp_path, lambda: model_of(keras), x.batch(size), on_nan="skip")
    assert f"no single row is to blame, of {size}. Not finite in some: features." in error
    assert "Values of row 0: features = [" in error
    assert "nan" in error


def test_callbacks_that_spoil_weights_are_to_blame(tmp_path: Path, keras: Any) -> None:
    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 4:
                self.model.set_weights([weight * np.nan for weight in self.model.get_weights()])

    for _ in range(2):
        with pytest.raises(WorkerLostError):
            fit(tmp_path, model_of(keras), data(), Spoil())
        noted = tmp_path / "fit" / "not-finite"
        kept = noted.read_text(encoding="utf-8")
        noted.write_text("", encoding="utf-8")  # as after a loss of power: noted once more
    noted.write_text(kept, encoding="utf-8")
    with pytest.raises(TrainingError, match=r"before batch 6 of epoch 1 .* callbacks do"):
        fit(tmp_path, model_of(keras), data(), Spoil())


def test_rows_are_left_out(tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(WorkerLostError):
        fit(tmp_path, model_of(keras), data(np.nan), on_nan="skip")
    model = model_of(keras)
    fit(tmp_path, model, data(np.nan), on_nan="skip")
    assert "Left out of batch 6 of epoch 1 (step 6): row 5 of 8" in caplog.text
    expected = model_of(keras)
    for number, (features, label) in enumerate(data()):
        rows = [row for row in range(SIZE) if (number, row) != divmod(BAD, SIZE)]
        expected.train_on_batch(features.numpy()[rows], label.numpy()[rows])
    np.testing.assert_allclose(values(model), values(expected), rtol=1e-6)


def test_good_fits_end(tmp_path: Path, keras: Any) -> None:
    def of_no_rows(y: Any, p: Any) -> Any:  # such as the mean over the rows of a rare class
        return tf.reduce_mean(tf.boolean_mask(y, y > 1e9))

    class Masked(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.mask = self.add_weight(shape=[2], initializer=self.infinite, name="mask")

        def infinite(self, shape: Any, dtype: Any = None, **arguments: Any) -> Any:
            return tf.constant([0.0, -np.inf], dtype)

        def call(self, inputs: Any) -> Any:
            return inputs * tf.reduce_sum(tf.nn.softmax(self.mask))

    stops = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
    good: dict[str, dict[str, Any]] = {
        "large loss": {"loss": lambda y, p: 1e35 * (p - y) ** 2, "rate": 1e-38},
        "NaN metric": {"metrics": [of_no_rows]},
        "NaN loss": {"loss": lambda y, p: (p - y) ** 2 + np.nan},
        "scaled": {"optimizer": scaled(keras, initial_scale=2.0**127)},
    }
    broken = data(np.nan, [0, 1, 2])
    for name, arguments in good.items():
        model = model_of(keras, **arguments)
        fit(tmp_path / name, model, data(), validation_data=broken, epochs=2)
        assert np.isfinite(values(model)[0]).all(), name
    masked = keras.Sequential([keras.Input([3]), Masked(), keras.layers.Dense(1)])
    masked.compile("sgd", "mse", run_eagerly=True)
    fit(tmp_path / "masked", masked, data())
    words = keras.layers.TextVectorization(output_mode="count", max_tokens=5)
    words.adapt(["a b", "c"])
    layers = [keras.Input([], dtype="string"), words, keras.layers.Dense(1)]
    text = keras.Sequential(layers)  # with Keras 2, its weights include a vocabulary
    text.compile("sgd", "mse", run_eagerly=True)
    fit(tmp_path / "text", text, tf.data.Dataset.from_tensors((["a", "b c"], [0.0, 1.0])))
    inputs = keras.Input([3])

    class Measured(keras.Model):
        pass

    measured = Measured(inputs, keras.layers.Dense(1)(inputs))
    measured.compile("sgd", "mse", run_eagerly=True)
    measured.ratio = keras.metrics.Mean()  # with Keras 2, its variables are among the weights
    measured.ratio.update_state([0.0])
    update = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: measured.ratio.update_state([np.nan])
    )
    fit(tmp_path / "measured", measured, data(), update)
    frozen = model_of(keras)
    frozen.trainable = False
    fit(tmp_path / "frozen", frozen, data())
    # Callbacks that act themselves: one restores weights, one stops and leaves them.
    restored = model_of(keras)
    x = data().concatenate(broken.repeat(8)).repeat()
    fit(tmp_path / "restored", restored, x, stops, epochs=9, steps_per_epoch=8)
    assert np.isfinite(values(restored)[0]).all()
    fit(tmp_path / "stopped", model_of(keras), broken, keras.callbacks.TerminateOnNaN(), epochs=2)


def test_what_to_do_is_one_of_three(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="on_nan: expected one of error, skip, ignore"):
        resume_callbacks(fn_args(tmp_path), on_nan="stop")
