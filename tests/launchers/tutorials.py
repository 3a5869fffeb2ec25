"""Code of others that trains on several workers, as it is, in a `run_fn` around it."""

__all__ = ["GUIDE"]

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
