"""Whatever a fit trains, and however its data end, it resumes exactly: with either Keras.

Most models run eagerly, as tracing them would take most of the time; `test_resume_callbacks`, the
data that end between epochs and the campaign train compiled ones.
"""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer import training
from generic_trainer._core import internals
from generic_trainer.errors import TrainingError
from tests.training.resume.fit_in_child import dropout_with_generator
from tests.training.resume.fits import Ended, ending, fn_args, values

pytestmark = pytest.mark.slow


def callbacks(keras: Any, directory: Path, end: int, **arguments: Any) -> list[Any]:
    """Returns callbacks that end the fit after some steps (0: never), and save after each before.

    `Resume` takes its place behind all others.
    """
    resume = training.resume_callbacks(fn_args(directory), every_steps=1, **arguments)
    return [*resume, ending(keras, end)]


def batches(count: int = 6) -> tf.data.Dataset:
    x = tf.reshape(tf.range(2 * count, dtype=tf.float32), [2 * count, 1]) / 12
    return tf.data.Dataset.from_tensor_slices((x, 2 * x)).shuffle(2 * count, seed=3).batch(2)


def plain(keras: Any, *, eager: bool = True, **options: Any) -> Any:
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=eager, **options)
    return model


def compiled(keras: Any) -> Any:
    return plain(keras, eager=False)


def paired(keras: Any) -> Any:
    return plain(keras, eager=False, steps_per_execution=2)


def stopping(keras: Any) -> Any:
    """Returns a model that ends its training within the second epoch."""

    class Stopping(keras.Sequential):
        def train_step(self, *data: Any) -> Any:
            logs = super().train_step(*data)
            self.stop_training = int(self.optimizer.iterations) == 8
            return logs

    model = Stopping([keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


def own(keras: Any) -> Any:
    """Returns keras.io's GAN in small, with variables of its own.

    Two optimizers are in a list and an object; a counter is an attribute, a moving target in a
    dict.
    """

    class Pair:
        __module__ = "this"

        def __init__(self) -> None:
            self.discriminate = keras.optimizers.Adam(0.02)

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.generator = keras.layers.Dense(1)
            parts = [dropout_with_generator(keras), keras.layers.Dense(1)]
            self.discriminator = keras.Sequential(parts)
            self.seen = tf.Variable(0.0, trainable=False)
            self.targets = {"moving": (tf.Variable([[0.5]], trainable=False),)}

        def compile(self) -> None:
            super().compile(loss="mse", run_eagerly=True)
            self.generate = [keras.optimizers.RMSprop(0.01, momentum=0.5)]
            self.pair = Pair()

        def call(self, x: Any) -> Any:
            return self.discriminator(self.generator(x))

        def train_step(self, batch: Any) -> Any:
            x, y = batch
            moving = self.targets["moving"][0]
            self.seen.assign_add(1.0)
            moving.assign(0.9 * moving + 0.1 * tf.reduce_mean(y))
            for part, optimizer in (
                (self.discriminator, self.pair.discriminate),
                (self.generator, self.generate[0]),
            ):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(x + self.seen) - y - moving) ** 2)
                gradients = tape.gradient(loss, part.trainable_variables)
                optimizer.apply_gradients(zip(gradients, part.trainable_variables, strict=True))
            return {"loss": loss}

    model = Own()
    model.compile()
    return model


def penalized(keras: Any) -> Any:
    """Returns a model that adds a loss in `call`, which Keras 2 can only build with data."""

    class Penalized(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last = keras.layers.Dense(3), keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            hidden = self.hidden(x)
            self.add_loss(tf.reduce_mean(hidden**2))
            return self.last(hidden)

    model = Penalized()
    model.compile("adam", "mse", run_eagerly=True)
    return model


KINDS: dict[str, Callable[[Any], Any]] = {
    each.__name__: each for each in (plain, compiled, paired, stopping, own, penalized)
}


def trained(
    keras: Any, kind: str, directory: Path, *ends: int, **arguments: Any
) -> tuple[list[Any], list[Any]]:
    """Returns weights and losses of as many fits as there are ends."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model, losses = KINDS[kind](keras), list[float]()
    arguments = {"x": batches(), "epochs": 2, "verbose": 0, **arguments}
    for name, end in zip(("fit", "fine_tuning"), ends, strict=False):
        fitted = model.fit(**arguments, callbacks=callbacks(keras, directory, end, name=name))
        losses += fitted.history["loss"]
    return values(model), losses


def assert_resumes(
    keras: Any,
    kind: str,
    directory: Path,
    *all_ends: tuple[int, ...],
    data: Callable[[], tf.data.Dataset] = batches,
    **arguments: Any,
) -> None:
    """Asserts that fits, one of which is ended and resumed, equal those without an interruption.

    `all_ends` are of as many runs, which are compared with the same one.
    """
    never = [0] * len(all_ends[0])
    straight = trained(keras, kind, directory / "straight", *never, x=data(), **arguments)
    for ends in all_ends:
        ended = directory / f"ended-{[*ends]}"  # as a pattern, it would match another directory
        with pytest.raises(Ended):
            trained(keras, kind, ended, *ends, x=data(), **arguments)
        assert trained(keras, kind, ended, *never, x=data(), **arguments) == straight


def test_optimizers_and_variables_of_a_model_are_saved(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # The loss of `own` is no metric, and the checkpoint of 6 is that of the last batch of an epoch.
    assert_resumes(keras, "own", tmp_path, (7,), (9,))
    assert "start anew" not in caplog.text

    class Unbuilt(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.generator = keras.layers.Dense(1)

        def build(self, input_shape: Any) -> None:
            pass

    model = Unbuilt()
    if keras.__name__ == "keras":  # whose layers know from what to make their weights
        assert training.restore_weights(model, fn_args(tmp_path / "straight"))
        assert len(model.generator.weights) == 2
        return
    with pytest.raises(TrainingError, match="has no weights yet: call it on a batch"):
        training.restore_weights(model, fn_args(tmp_path / "straight"))


def test_a_fit_that_was_stopped_within_an_epoch_is_not_stopped_earlier(
    tmp_path: Path, keras: Any
) -> None:
    assert_resumes(keras, "stopping", tmp_path, (7,))


def test_a_model_that_is_built_by_its_first_step_resumes(tmp_path: Path, keras: Any) -> None:
    assert_resumes(keras, "penalized", tmp_path, (7,))


@pytest.mark.parametrize("kind", ["whole numbers in a Sequential", "texts in a subclass"])
def test_a_model_that_is_built_by_its_first_step_reads_inputs_as_they_are(
    tmp_path: Path, keras: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    keys = [b"a", b"b", b"c"] if "texts" in kind else [2**32 + 1, 2**32 + 2, 2**32 + 3]

    def looked_up(keras: Any) -> Any:
        lookup = keras.layers.StringLookup if "texts" in kind else keras.layers.IntegerLookup
        parts = [lookup(vocabulary=keys), keras.layers.Embedding(4, 2), keras.layers.Dense(1)]
        model = keras.Sequential(parts)

        class Around(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.parts = keras.Sequential(parts)

            def call(self, x: Any) -> Any:
                return self.parts(x)

        model = Around() if "subclass" in kind else model
        model.compile("adam", "mse")
        return model

    def data() -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices((keys, [[1.0], [2.0], [4.0]]))
        return rows.repeat(4).batch(2)

    monkeypatch.setitem(KINDS, "looked up", looked_up)
    assert_resumes(keras, "looked up", tmp_path, (7,), data=data)


@pytest.mark.parametrize("kind", ["ragged", "sparse", "None"])
def test_a_model_that_is_built_by_its_first_step_may_take_what_is_no_tensor(
    tmp_path: Path, keras: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "None" and keras.__name__ == "keras":
        pytest.skip("Keras 3 takes no None in data")
    to, back = {
        "ragged": (tf.RaggedTensor.from_tensor, lambda x: x.to_tensor()),
        "sparse": (tf.sparse.from_dense, tf.sparse.to_dense),
        "None": (lambda x: (x, None), lambda x: x[0]),
    }[kind]

    def taking(keras: Any) -> Any:
        class Taking(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.last = keras.layers.Dense(1)

            def call(self, x: Any) -> Any:
                return self.last(tf.ensure_shape(back(x), [2, 1]))

        model = Taking()
        model.compile("adam", "mse")
        return model

    def data() -> tf.data.Dataset:
        return batches().map(lambda x, y: (to(x), y))

    monkeypatch.setitem(KINDS, "taking", taking)
    assert_resumes(keras, "taking", tmp_path, (7,), data=data)


def test_data_may_end_within_an_execution_of_several_steps(tmp_path: Path, keras: Any) -> None:
    assert_resumes(keras, "paired", tmp_path, (4,), data=lambda: batches(5))


@pytest.mark.parametrize(
    ("keras", "kind", "end"),
    [("tf_keras", "own", 8), ("keras", "own", 8), ("keras", "plain", 1)],
    indirect=["keras"],
)
def test_a_second_fit_begins_with_the_optimizer_of_the_first(
    tmp_path: Path, keras: Any, kind: str, end: int
) -> None:
    assert_resumes(keras, kind, tmp_path, (0, end))


# Keras 2 ends with the data.
@pytest.mark.parametrize(
    ("keras", "count", "size", "end"),
    [
        *(("keras", 7, "unknown", 12), ("keras", 7, "unknown", 6), ("keras", 6, "known", 6)),
        *(("tf_keras", 7, "unknown", 6), ("tf_keras", 6, "known", 3)),
    ],
    indirect=["keras"],
)
def test_data_that_end_between_epochs_or_within_one(
    tmp_path: Path, keras: Any, count: int, size: str, end: int
) -> None:
    def data() -> tf.data.Dataset:
        made = batches(count)
        return made if size == "known" else made.filter(lambda x, y: True)

    assert_resumes(keras, "compiled", tmp_path, (end,), data=data, epochs=6, steps_per_epoch=3)


@pytest.mark.parametrize("is_endless", [False, True])
@pytest.mark.parametrize("copy", ["prefetch_to_device", "copy_to_device"])
def test_data_may_be_copied_to_a_device(
    tmp_path: Path, keras: Any, copy: str, is_endless: bool
) -> None:
    """TensorFlow has no graph of such data."""

    def data() -> tf.data.Dataset:
        rows = batches().repeat() if is_endless else batches()
        return rows.apply(getattr(tf.data.experimental, copy)("/cpu:0")).prefetch(1)

    steps = 6 if is_endless else None
    assert_resumes(keras, "plain", tmp_path, (8,), data=data, steps_per_epoch=steps)


def test_other_data_than_were_saved_are_refused(tmp_path: Path, keras: Any) -> None:
    epochs: list[Any] = [(11, {"epochs": 1}), (0, {"epochs": 3}), (11, {"initial_epoch": 1})]
    for end, other in ((11, {"x": batches(4)}), *epochs):
        directory = tmp_path / "-".join([str(end), *other])
        with contextlib.suppress(Ended):
            trained(keras, "plain", directory, end)
        with pytest.raises(TrainingError, match=r"end at another batch\. Restore them"):
            trained(keras, "plain", directory, 0, **other)


def test_a_second_fit_shuffles_endless_data_as_without_the_interruption(
    tmp_path: Path, keras: Any
) -> None:
    def data() -> tf.data.Dataset:
        options = tf.data.Options()  # what is read ahead may draw a seed, or not yet
        options.experimental_optimization.inject_prefetch = False
        return batches().unbatch().shuffle(12, seed=4).repeat().batch(2).with_options(options)

    assert_resumes(keras, "plain", tmp_path, (0, 1), data=data, steps_per_epoch=4)


def test_a_shuffle_without_a_seed_is_reported(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internals.TF_EAGER_CONTEXT.get()(), "_seed", None)
    x = np.ones([12, 1])
    rows = tf.data.Dataset.from_tensor_slices((x, x))
    shuffled = rows.shuffle(9).batch(2)
    copied = shuffled.apply(tf.data.experimental.copy_to_device("/cpu:0"))
    cases = {"array": (x, x, 2), "dataset": (shuffled,), "copied": (copied,)}
    cases["seeded"] = (batches(),)
    for name, data in cases.items():
        caplog.clear()
        for end in (3, 0):
            resuming = callbacks(keras, tmp_path / name, end)
            with contextlib.suppress(Ended):
                plain(keras).fit(*data, epochs=2, verbose=0, callbacks=resuming)
        assert ("shuffled without a seed" in caplog.text) == (name != "seeded")


def test_another_order_in_a_cache_is_reported(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = tf.data.Dataset.from_tensor_slices((np.ones([12, 1]), np.ones([12, 1])))
    in_file = rows.shuffle(9).cache(str(tmp_path / "cached"))
    drawn = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True)
    cases = {"before": rows.shuffle(9).cache(), "after": rows.cache().shuffle(9), "file": in_file}
    cases["drawn"] = tf.data.Dataset.zip((rows, drawn)).map(lambda row, _: row).cache()
    for name, data in cases.items():
        caplog.clear()
        for end in (8, 0):
            resuming = callbacks(keras, tmp_path / name, end)
            with contextlib.suppress(Ended):
                plain(keras).fit(data.batch(2), epochs=2, verbose=0, callbacks=resuming)
        assert ("drawn before a cache" in caplog.text) == (name in ("before", "drawn"))


def test_variables_that_cannot_be_saved_are_named(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    apart = tf.Variable(1.0, trainable=False, name="apart")
    counted = tf.Variable(0.0, trainable=False, name="counted")
    still = tf.Variable(1.0, trainable=False, name="still")
    # Of another model, say; NaN is not equal to itself.
    broken = [tf.Variable(np.nan, dtype=kind, name="broken") for kind in (tf.float32, tf.bfloat16)]

    class Using(keras.Sequential):
        @tf.autograph.experimental.do_not_convert
        def train_step(self, batch: Any) -> Any:
            apart.assign_add(still)
            return super().train_step(batch)

    model = Using([keras.layers.Dense(1)])
    model.compile("adam", "mse")
    with caplog.at_level(logging.WARNING):
        count = keras.callbacks.LambdaCallback(on_epoch_end=lambda *args: counted.assign_add(1.0))
        resuming = [count, *callbacks(keras, tmp_path, 0)]
        model.fit(batches(), epochs=2, verbose=0, callbacks=resuming)
    messages = [each for each in caplog.messages if "these variables start anew" in each]
    names = ("apart", "counted", "still", "dense", broken[0].name)
    assert [[name for name in names if name in each] for each in messages] == [
        ["apart"],
        ["counted"],
    ]


def test_other_state_that_cannot_be_saved_is_named(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    noise = tf.random.Generator.from_seed(1)
    weight = tf.Variable(1.0, name="weight")

    class Using(keras.Sequential):
        def __init__(self, layers: Any) -> None:
            super().__init__(layers)
            self.weight, self.noise = weight, noise  # which does not help data that use them
            self.queue = tf.queue.FIFOQueue(99, [tf.float32])
            self.pool: list[float] = []
            self.sizes = [3]
            self.draws = np.random.default_rng(1)

        def train_step(self, batch: Any) -> Any:
            self.queue.enqueue([1.0])
            self.pool.append(self.draws.random() * self.sizes[0])
            table.insert(np.int64(len(self.pool)), np.int64(1))
            return super().train_step(batch)

    model = Using([keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    data = batches().map(lambda x, y: (x + noise.normal([1]), y * weight))
    change = keras.callbacks.LambdaCallback(on_epoch_end=lambda *args: weight.assign(2.0))
    with caplog.at_level(logging.WARNING):
        resuming = [change, *callbacks(keras, tmp_path, 0)]
        model.fit(data, epochs=2, verbose=0, callbacks=resuming)
    messages = "\n".join(each for each in caplog.messages if "If this fit is resumed" in each)
    assert [named in messages for named in ("StateVar", "weight:0")] == [True, True]
    assert messages.count("functions of its data use") == 2
    assert "neither of the model nor of a callback: a MutableHashTable." in messages
    assert "queues start anew, because nothing can save them: a FIFOQueue." in messages
    assert "are saved: pool, draws." in messages


def test_adapted_layers_are_restored(tmp_path: Path, keras: Any) -> None:
    texts = np.array([["b a"], ["b"], ["c d"], ["b"]])
    data = {
        "idf": texts,
        "words": texts,
        "text": texts,
        "numbers": np.array([[3], [7], [7], [5]]),
        "bins": np.array([[3.0], [7.0], [8.0], [5.0]], "float32"),
        "scaled": np.array([[100.0], [120.0], [150.0], [90.0]], "float32"),
    }

    class Model(keras.Model):
        def __init__(self, adapts: bool) -> None:
            super().__init__()
            self.parts = [
                keras.layers.StringLookup(output_mode="tf_idf"),
                keras.layers.StringLookup(),
                keras.layers.TextVectorization(),
                keras.layers.IntegerLookup(),
                keras.layers.Discretization(num_bins=2),
                keras.layers.Normalization(),
            ]
            self.dense = keras.layers.Dense(1)
            for layer, column in zip(self.parts, data.values(), strict=True):
                if adapts:
                    layer.adapt(column)
                elif column.dtype == "float32":
                    layer.build((None, 1))

        @tf.autograph.experimental.do_not_convert
        def call(self, x: Any, training: Any = None) -> Any:
            parts = zip(self.parts, data, strict=True)
            learned = [tf.cast(layer(x[name]), tf.float32) for layer, name in parts]
            sums = [tf.reduce_sum(each, -1, keepdims=True) for each in learned]
            return self.dense(tf.concat(sums, -1))

    first, other = Model(True), Model(False)
    first.compile("adam", "mse")
    first.fit(
        tf.data.Dataset.from_tensors((data, np.ones([4, 1], "float32"))),
        verbose=0,
        callbacks=callbacks(keras, tmp_path, 0),
    )
    other.dense.build((None, 6))
    other.built = True
    assert training.restore_weights(other, fn_args(tmp_path))
    inputs = {name: tf.constant(each) for name, each in data.items()}
    assert np.asarray(other(inputs)).tolist() == np.asarray(first(inputs)).tolist()
