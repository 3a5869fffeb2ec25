"""Keras 3 through its own package: `import keras` instead of `tf.keras`.

Shows what Keras 2 has no counterpart for, operations from `keras.ops` in a layer of one's own, and
that such a model, too, can be loaded by every consumer. Needs TensorFlow as Keras' backend, which
is the default.
"""

from __future__ import annotations

import keras
from penguin_features import FEATURE_WIDTHS, SPECIES, preprocessing_fn, read_batches
from penguin_serving import export_for_serving
from tfx.components.trainer.fn_args_utils import FnArgs

__all__ = ["preprocessing_fn", "run_fn"]


def run_fn(fn_args: FnArgs) -> None:
    """Trains for `fn_args.train_steps` batches and exports the model."""
    model = _build_model()
    model.fit(
        read_batches(fn_args, fn_args.train_files),
        steps_per_epoch=fn_args.train_steps,
        validation_data=read_batches(fn_args, fn_args.eval_files, once=True),
        callbacks=[keras.callbacks.TensorBoard(fn_args.model_run_dir, write_graph=False)],
        verbose=2,
    )
    export_for_serving(model, fn_args)


class GatedDense(keras.layers.Layer):
    """A dense layer whose output a second one opens and shuts: W x * sigmoid(V x).

    Dauphin et al. (2017), "Language Modeling with Gated Convolutional Networks", section 2.
    """

    def __init__(self, units: int, **kwargs: object) -> None:
        """Makes a layer from float32 [N, any] to float32 [N, units]."""
        super().__init__(**kwargs)
        self.units = units
        self.both = keras.layers.Dense(2 * units)

    def build(self, input_shape: tuple[int | None, int]) -> None:
        """Creates the weights of both dense layers, side by side."""
        self.both.build(input_shape)
        super().build(input_shape)

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Applies the layer."""
        values, gates = keras.ops.split(self.both(inputs), 2, axis=-1)
        return values * keras.ops.sigmoid(gates)


def _build_model() -> keras.Model:
    inputs = {name: keras.Input((width,), name=name) for name, width in FEATURE_WIDTHS.items()}
    hidden = GatedDense(16)(keras.layers.Concatenate()(list(inputs.values())))
    probabilities = keras.layers.Dense(len(SPECIES), activation="softmax")(hidden)
    model = keras.Model(inputs, probabilities)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
