"""Module files that the campaigns train: one line through points, written for each trainer API.

They say in a file of notes what they do, `WORD NUMBER` in a line: `reading PID`, `training PID`,
`resumed STEP`, `step STEP`, `exporting PID`.
"""

from __future__ import annotations

from typing import Any

from benchmarks._artifacts import SCHEMA

__all__ = ["CUSTOM_CONFIG", "INTERVAL_STEPS", "SOURCES", "STEPS"]

INTERVAL_STEPS = 10
STEPS = 60

_NOTE = """
import os, time
import tensorflow as tf
from generic_trainer import training

def note(text):
    with open(os.environ["CAMPAIGN_NOTES"], "a") as file:
        file.write(text + "\\n")
"""
_PLAIN = """
class Plain(tf.keras.Sequential):
    # Keras 2 has all of its own code converted, which takes longer than everything else here.
    @tf.autograph.experimental.do_not_convert
    def train_step(self, data):
        return super().train_step(data)
    @tf.autograph.experimental.do_not_convert
    def test_step(self, data):
        return super().test_step(data)
"""
_LINE = """
def read(fn_args):
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tfx_bsl.public import tfxio
    options = tfxio.TensorFlowDatasetOptions(batch_size=4, num_epochs=None, label_key="y")
    schema = text_format.Parse(SCHEMA, schema_pb2.Schema())
    data = fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, options, schema)
    return data.map(lambda features, label: (features["x"] / 100.0, label / 100.0))

def save(fn_args, weight, bias):
    if not training.is_chief():
        return
    note(f"exporting {os.getpid()}")
    class Line(tf.Module):
        def __init__(self):
            self.weight, self.bias = tf.Variable(weight), tf.Variable(bias)
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def serve(self, examples):
            features = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
            return {"outputs": features["x"] * self.weight + self.bias}
    line = Line()
    tf.saved_model.save(
        line, fn_args.serving_model_dir, signatures={"serving_default": line.serve}
    )
"""
_LOOP = """
def run_fn(fn_args):
    note(f"reading {os.getpid()}")
    iterator = iter(read(fn_args))
    weight, bias, velocity = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0.0)
    state = {"weight": weight, "bias": bias, "velocity": velocity, "iterator": iterator}
    wait_s = (fn_args.custom_config or {}).get("wait_s", 0.0)
    with training.CheckpointManager(fn_args.checkpoint_dir, wait_s=wait_s) as manager:
        saved = manager.restore_objects(state)
        first = saved.step if saved else 0
        note(f"resumed {first}")
        note(f"training {os.getpid()}")
        for step in range(first, fn_args.train_steps):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x * weight + bias - y) ** 2)
            slope, shift = tape.gradient(loss, [weight, bias])
            velocity.assign(0.9 * velocity + slope)
            weight.assign_sub(0.1 * velocity)
            bias.assign_sub(0.1 * shift)
            time.sleep(0.003)
            note(f"step {step + 1}")
            if (step + 1) % INTERVAL_STEPS == 0:
                manager.save_objects(step + 1, state)
    save(fn_args, weight.numpy(), bias.numpy())
"""
_FIT = """
_steps = []  # of this process, where an attribute of the callback would be restored

class Notes(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        if training.is_chief():
            note(f"training {os.getpid()}")
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.003)
        if training.is_chief():
            step = int(self.model.optimizer.iterations.numpy())
            if not _steps and step > 1:
                note(f"resumed {step - 1}")
            note(f"step {step}")
            _steps.append(step)

def run_fn(fn_args):
    if training.is_chief():
        note(f"reading {os.getpid()}")
    with training.get_strategy().scope():
        tf.keras.utils.set_random_seed(1)
        model = Plain([tf.keras.layers.Dense(1, input_shape=(1,))])
        model.compile("adam", "mse")
    callbacks = training.resume_callbacks(
        fn_args,
        callbacks=[Notes()],
        every_steps=INTERVAL_STEPS,
        preemption_grace_s=15.0,
    )
    steps = fn_args.train_steps // 2
    model.fit(read(fn_args), epochs=2, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    kernel, bias = model.get_weights()
    save(fn_args, kernel[0], bias)
"""
_TRIAL = """
import numpy as np
from generic_trainer.trials.keras import TFKerasTrial

X = np.linspace(0, 1, 64, dtype=np.float32)[:, None]

class Slow(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.003)

class LineTrial(TFKerasTrial):
    def __init__(self, context):
        self.context = context
    def build_model(self):
        note(f"training {os.getpid()}")
        dense = tf.keras.layers.Dense(1, kernel_initializer="zeros")
        model = self.context.wrap_model(Plain([tf.keras.Input([1]), dense]))
        model.compile(tf.keras.optimizers.Adam(0.01), "mse", jit_compile=False)
        return model
    def build_training_data_loader(self):
        return X, 2 * X
    def build_validation_data_loader(self):
        return X[:8], 2 * X[:8]
    def keras_callbacks(self):
        return [Slow()]
"""
_TRAINER_FN = """
from generic_trainer.estimator import tf

FEATURES = {name: tf.io.FixedLenFeature([1], tf.float32) for name in ("x", "y")}

def read(files):
    def parse(records):
        features = tf.io.parse_example(records, FEATURES)
        return features, features.pop("y")
    # One batch holds all: where the data begin again does not matter.
    files = tf.data.Dataset.list_files(files)
    return tf.data.TFRecordDataset(files, "GZIP").batch(32).map(parse).repeat()

def read_to_train(files):
    note(f"training {os.getpid()}")
    return read(files)

def model_fn(features, labels, mode):
    weight = tf.compat.v1.get_variable("weight", [], initializer=tf.zeros_initializer())
    y = features["x"] * weight
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, {"y": y})
    loss = tf.reduce_mean(tf.square(y - labels)) / 1000
    train_op = tf.compat.v1.train.MomentumOptimizer(0.01, 0.9).minimize(
        loss, tf.compat.v1.train.get_global_step()
    )
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def receive():
    return tf.estimator.export.build_parsing_serving_input_receiver_fn({"x": FEATURES["x"]})()

def trainer_fn(trainer_fn_args, schema):
    config = tf.estimator.RunConfig(
        model_dir=trainer_fn_args.serving_model_dir, save_checkpoints_steps=INTERVAL_STEPS
    )
    return {
        "estimator": tf.estimator.Estimator(model_fn, config=config),
        "train_spec": tf.estimator.TrainSpec(
            lambda: read_to_train(trainer_fn_args.train_files),
            max_steps=trainer_fn_args.train_steps,
        ),
        "eval_spec": tf.estimator.EvalSpec(
            lambda: read(trainer_fn_args.eval_files),
            steps=1,
            exporters=[tf.estimator.FinalExporter("line", receive)],
        ),
        "eval_input_receiver_fn": lambda: None,
    }
"""


def _source(*parts: str) -> str:
    text = "".join((_NOTE, *parts))
    return text.replace("SCHEMA", repr(SCHEMA)).replace("INTERVAL_STEPS", str(INTERVAL_STEPS))


# API → the module file.
SOURCES = {
    "loop": _source(_LINE, _LOOP),
    "fit": _source(_LINE, _PLAIN, _FIT),
    "trial": _source(_PLAIN, _TRIAL),
    "trainer_fn": _source(_TRAINER_FN),
}
# API → what the component is given as `custom_config`.
CUSTOM_CONFIG: dict[str, dict[str, Any]] = {
    "trial": {
        "hyperparameters": {"global_batch_size": 8},
        "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": STEPS}},
        "scheduling_unit": INTERVAL_STEPS,
        "min_checkpoint_period": {"batches": INTERVAL_STEPS},
    },
}
