"""Code of others that trains on several workers, as it is, in a `run_fn` around it."""

from __future__ import annotations

__all__ = ["GUIDE", "RAYS_EXAMPLE"]

# "Multi-worker training with Keras" of tensorflow.org, but for its data and its model.
GUIDE = """
import json, os

per_worker_batch_size = 8
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

def _is_chief(task_type, task_id):
    return (task_type == "worker" and task_id == 0) or task_type is None

def _get_temp_dir(dirpath, task_id):
    base_dirpath = "workertemp_" + str(task_id)
    temp_dir = os.path.join(dirpath, base_dirpath)
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir

def write_filepath(filepath, task_type, task_id):
    dirpath = os.path.dirname(filepath)
    base = os.path.basename(filepath)
    if not _is_chief(task_type, task_id):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, base)

def run_fn(fn_args):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_batch_size = per_worker_batch_size * num_workers
    dataset = read(fn_args, global_batch_size, None).map(lambda batch: (batch["x"], batch["y"]))
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
        model.compile(tf.keras.optimizers.SGD(1e-4), "mse")
    inputs, _ = next(iter(strategy.experimental_distribute_dataset(dataset)))
    (inputs,) = strategy.experimental_local_results(inputs)
    print("batch of this worker:", inputs.shape[0])
    model.fit(dataset, epochs=2, steps_per_epoch=2, verbose=0)
    print("weights:", *(float(w) for w in tf.reshape(model.get_weights()[0], [-1])))
    task_type, task_id = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
    print("chief:", _is_chief(task_type, task_id))
    write_model_path = write_filepath(fn_args.serving_model_dir, task_type, task_id)
    model.save(write_model_path)
    if not _is_chief(task_type, task_id):
        tf.io.gfile.rmtree(os.path.dirname(write_model_path))
"""

# `train_func` of Ray Train's example for TensorflowTrainer, as the installed ray has it. Of MNIST,
# which it downloads, a few rows are made up.
RAYS_EXAMPLE = """
import numpy as np
import ray.train
from ray.train.examples.tf.tensorflow_mnist_example import train_func
from ray.train.tensorflow import TensorflowCheckpoint

def few_digits():
    drawn = np.random.RandomState(0)
    x, y = drawn.randint(0, 256, [16, 28, 28], np.uint8), drawn.randint(0, 10, [16], np.uint8)
    return (x, y), (x, y)

def run_fn(fn_args):
    tf.keras.datasets.mnist.load_data = few_digits
    results = train_func({"lr": 1e-3, "batch_size": 4, "epochs": 2, "steps_per_epoch": 1})
    print("losses:", *results["loss"])
    context, newest = ray.train.get_context(), ray.train.get_checkpoint()
    print("rank:", context.get_world_rank(), "of", context.get_world_size())
    model = TensorflowCheckpoint(newest.path).get_model()
    print("sum:", *(float(tf.reduce_sum(each)) for each in model.get_weights()))
    tf.saved_model.save(model, fn_args.serving_model_dir)
"""
