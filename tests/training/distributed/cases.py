"""Small fits of Keras 3, each of which ends the same on one worker and on several."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

ROWS, FEATURES, EPOCHS = 37, 6, 2
_DRAWN = np.random.RandomState(0)
X = _DRAWN.rand(ROWS, FEATURES).astype(np.float32)
Y = (X.sum(1, keepdims=True) ** 2).astype(np.float32)
WEIGHTS = _DRAWN.rand(ROWS).astype(np.float32)

layers, optimizers = keras.layers, keras.optimizers


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and how it is trained.

    Attributes:
        make: returns its layers.
        optimizer: returns its optimizer.
        batch: the global batch size; the last batch of an epoch has the rest of the rows.
        inputs: [ROWS, FEATURES].
        weighted: whether the rows have sample weights.
        shuffled: whether the rows come in another order in each epoch.
        options: of `compile`.
        loss: of `compile`.
        kind: class of the model.
        accuracy: of the weights, relative; that of float32, or of what the layers compute in.
    """

    make: Callable[[], list[Any]]
    optimizer: Callable[[], Any] = lambda: optimizers.SGD(0.02, momentum=0.5)
    batch: int = 12
    inputs: Any = None
    weighted: bool = False
    shuffled: bool = True
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    accuracy: float = 2e-5
    loss: Any = "mse"
    kind: type = keras.Sequential

    def model(self) -> Any:
        """Returns the compiled model, from the same seed everywhere."""
        keras.utils.set_random_seed(1)
        inputs = self.data()
        model = self.kind([keras.Input(inputs.shape[1:], dtype=inputs.dtype), *self.make()])
        metrics = ["mae", keras.metrics.RootMeanSquaredError()]
        model.compile(self.optimizer(), self.loss, metrics=metrics, **self.options)
        return model

    def data(self) -> Any:
        return X if self.inputs is None else self.inputs

    def dataset(self) -> tf.data.Dataset:
        arrays = (self.data(), Y, *([WEIGHTS] if self.weighted else []))
        rows = tf.data.Dataset.from_tensor_slices(arrays)
        return (rows.shuffle(ROWS, seed=3) if self.shuffled else rows).batch(self.batch)

    def fit(self) -> tuple[Any, dict[str, Any]]:
        """Returns the weights and the history."""
        model = self.model()
        history = model.fit(
            self.dataset(), epochs=EPOCHS, verbose=0, validation_data=self.dataset()
        )
        return flat(model), history.history


def fit_keras_2(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """Returns the weights and the history of a small fit of Keras 2."""
    with strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(FEATURES,))])
        model.compile(tf_keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    model.set_weights([np.ones([FEATURES, 1]), np.zeros([1])])
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # Not shuffled: its order depends on the seed that other tests of this process have set.
    rows = tf.data.Dataset.from_tensor_slices((X[:36], Y[:36])).batch(12)
    history = model.fit(rows.with_options(options), epochs=EPOCHS, verbose=0).history
    return {"weights": flat(model).tolist(), "history": history}


def flat(model: Any) -> Any:
    """Returns the weights of a model as one array, without those that count random draws."""
    kept = [each for each in model.weights if each.dtype == "float32"]
    kept += [each["moving"] for each in getattr(model, "own", ())]
    return np.concatenate([each.numpy().ravel() for each in kept])


def dense() -> list[Any]:
    return [layers.Dense(8, "relu"), layers.Dense(1)]


def halves() -> list[Any]:
    return [
        layers.Dense(8, "relu", dtype="mixed_float16"),
        layers.Dense(1, dtype="mixed_float16"),
        layers.Activation("linear", dtype="float32"),
    ]


def embedded() -> list[Any]:
    return [layers.Embedding(9, 3), layers.Flatten(), layers.Dense(1)]


def normalized(**options: Any) -> Callable[[], list[Any]]:
    # Without a bias, whose gradient would be but rounding.
    return lambda: [
        layers.Dense(4, use_bias=False),
        layers.BatchNormalization(momentum=0.5, **options),
        layers.Dense(1),
    ]


class OwnMean(keras.Sequential):
    """Computes a mean of its own in a step of its own, as keras.io's VAE does."""

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean(tf.reduce_sum((predicted - y) ** 2, axis=1))
            loss += 0.01 * tf.reduce_mean(tf.abs(predicted))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return self.compute_metrics(x, y, predicted)


class MovingTarget(keras.Sequential):
    """Follows the labels by variables that Keras knows nothing of, and sums integers."""

    def __init__(self, layers: Any) -> None:
        super().__init__(layers)
        self.own = [{"moving": tf.Variable([[0.5]])}]

    def train_step(self, data: Any) -> Any:
        x, y = data
        moving = self.own[0]["moving"]
        result = super().train_step((x, y + moving))
        sizes = [tf.shape(y)[0], tf.size(y, tf.int64)]
        rows, values = tf.distribute.get_replica_context().all_reduce("SUM", sizes)
        step = 0.01 * (tf.cast(rows, tf.float32) + tf.cast(values, tf.float32))
        moving.assign(moving + step * tf.reduce_mean(y))
        return result


class OwnLogs(keras.Sequential):
    """Returns a metric by another name in training, and a mean of the batch in validation."""

    def train_step(self, data: Any) -> Any:
        return {"error": super().train_step(data)["mae"]}

    def test_step(self, data: Any) -> Any:
        x, y = data
        return {"gap": tf.reduce_mean(tf.abs(y - self(x)))}


class SumOfSums(keras.losses.Loss):
    """Computes another loss that is a sum."""

    def __init__(self) -> None:
        super().__init__(reduction="sum")
        self._inner = keras.losses.MeanSquaredError(reduction="sum")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._inner(y_true, y_pred)


class OwnMeanAndCompiledLoss(keras.Sequential):
    """Adds a mean of its own to the compiled loss, which Keras averages."""

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + tf.reduce_mean(y_pred**2)


def known() -> list[Any]:
    """Returns layers that raise an error for a value that is not in the vocabulary, such as 0."""
    options = {"vocabulary": [*range(1, 10)], "num_oov_indices": 0, "output_mode": "multi_hot"}
    return [layers.IntegerLookup(**options), layers.Dense(1)]


WHOLE_NUMBERS = (X * 9).astype(np.int32)

# What the default tests run. Batches of 12 and 9 rows leave 1 row for the last one.
FEW = {
    "clipped, weighted, one row left": Case(
        dense,
        lambda: optimizers.Adam(0.01, global_clipnorm=0.1, weight_decay=0.01),
        weighted=True,
    ),
    "mean of its own, one row left": Case(dense, kind=OwnMean),
    "variables of its own": Case(dense, kind=MovingTarget),
    "vocabulary without other words, one row left": Case(known, inputs=WHOLE_NUMBERS + 1),
    "logs of its own, one row left": Case(dense, kind=OwnLogs),
    "sparse gradients, steps_per_execution": Case(
        embedded, inputs=WHOLE_NUMBERS, options={"steps_per_execution": 3}
    ),
}
# What three workers and more do otherwise, if anything.
SOME = {
    **FEW,
    "synchronized BatchNormalization, one row left": Case(normalized(synchronized=True)),
    "halves, loss scale that grows": Case(
        halves,
        lambda: optimizers.LossScaleOptimizer(
            optimizers.SGD(0.02), initial_scale=2.0**9, dynamic_growth_steps=3
        ),
        accuracy=5e-3,
    ),
    # All gradients overflow, and so no step counts.
    "halves, loss scale that shrinks": Case(
        halves, lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.02), initial_scale=2.0**40)
    ),
    "jit_compile, steps_per_execution": Case(
        dense,
        lambda: optimizers.Nadam(0.01, clipnorm=0.5),
        weighted=True,
        options={"jit_compile": True, "steps_per_execution": 2},
    ),
}
MANY = {
    **SOME,
    "mean of its own beside the compiled loss": Case(dense, kind=OwnMeanAndCompiledLoss, batch=9),
    "loss function that returns a scalar": Case(
        dense, loss=lambda y, predicted: tf.reduce_mean((predicted - y) ** 2)
    ),
    "sum": Case(
        dense, lambda: optimizers.SGD(0.001), loss=keras.losses.MeanSquaredError(reduction="sum")
    ),
    "sum of sums": Case(dense, lambda: optimizers.SGD(0.001), loss=SumOfSums()),
    "loss scale": Case(dense, lambda: optimizers.LossScaleOptimizer(optimizers.RMSprop(0.01))),
    "sparse gradients, Adam": Case(
        embedded, lambda: optimizers.Adam(0.01), inputs=WHOLE_NUMBERS, batch=9
    ),
    "accumulated": Case(dense, lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2)),
    "regularized": Case(
        lambda: [layers.Dense(8, kernel_regularizer="l2"), layers.Dense(1)],
        lambda: optimizers.Lion(0.01, clipvalue=0.01, use_ema=True, ema_overwrite_frequency=2),
    ),
    **{
        kind.__name__: Case(dense, functools.partial(kind, rate))
        for kind, rate in (
            (optimizers.Adafactor, 0.05),
            (optimizers.AdamW, 0.01),
            (optimizers.Ftrl, 0.1),
            (optimizers.Adamax, 0.01),
        )
    },
}
# What is drawn, and what a layer knows of its batch, are those of a share.
OF_SHARES = {
    "BatchNormalization": Case(normalized(), batch=18, shuffled=False),
    "Dropout": Case(
        lambda: [layers.Dense(8), layers.Dropout(0.5), layers.Dense(1)], batch=9, shuffled=False
    ),
}
GROUPS = {"few": FEW, "some": {**SOME, **OF_SHARES}, "many": {**MANY, **OF_SHARES}}


def fit_shares(case: Case, size: int) -> Any:
    """Returns the weights that a case ends with if each share of a batch is run by itself.

    Gradients and changes of statistics are averaged by rows, as the definition says, in a loop.
    """
    model = case.model()
    metrics = {id(each) for each in model.metrics_variables}
    state = [each for each in model.non_trainable_variables if id(each) not in metrics]
    for _ in range(EPOCHS):
        for x, y in case.dataset():
            before = [each.numpy() for each in state]
            sums = [np.zeros(each.shape) for each in model.trainable_variables]
            changes = [np.zeros(each.shape) for each in state]
            for share in range(size):
                rows = slice(share * len(x) // size, (share + 1) * len(x) // size)
                if not len(x[rows]):
                    continue
                for variable, value in zip(state, before, strict=True):
                    variable.assign(value)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x[rows], training=True) - y[rows]) ** 2)
                part = len(x[rows]) / len(x)
                for i, gradient in enumerate(tape.gradient(loss, model.trainable_variables)):
                    sums[i] += part * gradient.numpy()
                for i, variable in enumerate(state):
                    changes[i] += part * (variable.numpy().astype(float) - before[i])
            for variable, value, change in zip(state, before, changes, strict=True):
                variable.assign((value + change).astype(value.dtype))
            gradients = [tf.constant(each, tf.float32) for each in sums]
            model.optimizer.apply(gradients, model.trainable_variables)
    return flat(model)
