"""A line by a Keras model without a trial class, which stops when it does not get any better."""

import numpy as np
import tensorflow as tf
from determined.keras import init
from determined.keras.callbacks import EarlyStopping, ReduceLROnPlateau

config = {
    "hyperparameters": {"global_batch_size": 4},
    "min_validation_period": {"batches": 5},
    "scheduling_unit": 5,
    "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 100}},
}
context = init(config, local=False, test=False, context_dir=".")
x = np.arange(8, dtype=np.float32)[:, None] / 8
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,), name="x")])
model = context.wrap_model(model)
model.compile(context.wrap_optimizer(tf.keras.optimizers.SGD(0.0)), "mse")
model.fit(
    x,
    2 * x,
    validation_data=(x, 2 * x),
    callbacks=[EarlyStopping("val_loss", patience=2), ReduceLROnPlateau("val_loss")],
)
