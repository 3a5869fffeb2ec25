"""Small trials, as module files: each ends the same on one slot and on two."""

CONFIG = {
    "hyperparameters": {"global_batch_size": 8},
    "min_validation_period": {"batches": 5},
    "scheduling_unit": 5,
    "searcher": {"max_length": {"batches": 10}},
}
_HEAD = """
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
drawn = np.random.RandomState(0)
X = drawn.rand(24, 6).astype(np.float32)
Y = (X.sum(1, keepdims=True) ** 2).astype(np.float32)
WHOLE = (X * 9).astype(np.int32)

def tell(context):
    p = context.distributed
    numbers = p.get_rank(), p.get_size(), p.get_local_rank(), p.get_num_agents()
    print("place:", *numbers, flush=True)
"""
KERAS = f"""{_HEAD}
from generic_trainer.trials.keras import TFKerasTrial, callbacks

class Told(callbacks.Callback):
    def on_checkpoint_end(self, checkpoint_dir):
        print("checkpoint:", tf.io.gfile.exists(checkpoint_dir), flush=True)

class Slots(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        tell(self.context)
        layers = tf.keras.layers
        made = [tf.keras.Input([6]), layers.Dense(8, "relu"), layers.Dense(1)]
        model = self.context.wrap_model(tf.keras.Sequential(made))
        optimizer = self.context.wrap_optimizer(tf.keras.optimizers.Adam(0.01, clipnorm=0.5))
        metrics = ["mae", tf.keras.metrics.RootMeanSquaredError()]
        model.compile(optimizer, "mse", metrics=metrics, jit_compile=False)
        return model

    def keras_callbacks(self):
        return [Told()]

    def read(self, rows):  # of 3, one of two workers gets no batch
        data = tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows]))
        return self.context.wrap_dataset(data.batch(self.context.get_per_slot_batch_size()))

    def build_training_data_loader(self):
        return self.read(24)

    def build_validation_data_loader(self):
        return self.read(3)
"""
ARRAYS = KERAS.replace("self.read(24)", "X, Y").replace("self.read(3)", "X[:21], Y[:21]")
PEDL = f"""{_HEAD}
from generic_trainer.trials.keras import KerasTrial

def make_data_loaders(config, hparams):
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return data.batch(8), data.take(21).batch(8)

class Slots(KerasTrial):
    def build_model(self, hparams):
        layers = [tf.keras.Input([6]), tf.keras.layers.Dense(1, kernel_initializer="zeros")]
        model = tf.keras.Sequential(layers)
        model.compile(tf.keras.optimizers.Adam(0.01), "mse", metrics=["mae"], jit_compile=False)
        return model
"""
# Of Keras 2: a step that computes its losses itself, on the lines of two files.
STEP = f"""{_HEAD}
import tempfile
from pathlib import Path
from generic_trainer.trials.keras import KerasTrial

def make_data_loaders(config, hparams):
    def row(line):
        numbers = tf.strings.to_number(tf.strings.split(line))
        return numbers[:6], numbers[6:]

    folder = tempfile.mkdtemp()
    files = [f"{{folder}}/{{name}}" for name in "ab"]
    for name, rows in zip(files, (slice(8), slice(8, 24))):
        np.savetxt(name, np.hstack([X, Y])[rows], "%.9g")
    data = tf.data.TextLineDataset(files).map(row).map(
        lambda x, y: (tf.ensure_shape(x, [6]), tf.ensure_shape(y, [1]))
    )
    return data.batch(8), data.batch(8)

class Stepping(tf.keras.Sequential):
    mean, total = tf.keras.losses.MeanSquaredError(), tf.keras.losses.MeanSquaredError("sum")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            p = self(x)
            own = tf.reduce_mean((p - y) ** 2) + tf.nn.compute_average_loss((p - y)[:, 0] ** 2)
            loss = self.compiled_loss(y, p) + own + self.mean(y, p) + self.total(y, p) / 8
        self.optimizer.minimize(loss, self.trainable_variables, tape)
        self.compiled_metrics.update_state(y, p)
        return {{"own": own, **{{metric.name: metric.result() for metric in self.metrics}}}}

class Told(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        print("outside:", float(Stepping.total(tf.ones([3, 1]), tf.zeros([3, 1]))), flush=True)

    def on_train_batch_end(self, batch, logs):
        print("batch:", batch, round(logs["own"]), flush=True)

class Slots(KerasTrial):
    def build_model(self, hparams):
        layers = [tf.keras.Input([6]), tf.keras.layers.Dense(1, kernel_initializer="zeros")]
        layers.append(tf.keras.layers.BatchNormalization())  # its statistics are of all replicas
        model = Stepping(layers)
        model.compile(tf.keras.optimizers.SGD(1e-4), "mse", metrics=["mae"])
        return model

    def keras_callbacks(self, hparams):
        return [Told()]
"""
GRAPH = f"""{_HEAD}
from generic_trainer.trials.tensorflow import TensorFlowTrial

def make_data_loaders(config, hparams):
    rows = {{"x": X[:21], "y": Y[:21], "whole": WHOLE[:21]}}
    data = tf.data.Dataset.from_tensor_slices(rows).batch(8)
    return data, data

class Slots(TensorFlowTrial):
    def build_graph(self, record, is_training):
        w = tf1.get_variable("w", [6, 1], initializer=tf1.zeros_initializer())
        rows = tf1.get_variable("rows", [9, 1], initializer=tf1.ones_initializer())
        y = record["x"] @ w + tf.reduce_sum(tf.nn.embedding_lookup(rows, record["whole"]), 1)
        mean = tf1.get_variable("mean", [1], trainable=False, initializer=tf1.zeros_initializer())
        old = mean.read_value()  # once: the update may precede another read
        new = 0.9 * old + 0.1 * tf.reduce_mean(y, 0)
        update = tf.cond(is_training, lambda: mean.assign(new), lambda: old)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
        error = y - old - record["y"]
        return {{"loss": tf.reduce_mean(error**2), "mae": tf.reduce_mean(tf.abs(error))}}

    def optimizer(self):
        return tf1.train.AdamOptimizer(0.1)

    def training_metrics(self):
        return ["mae"]

    def validation_metrics(self):
        return ["loss", "mae"]
"""
_MODEL_FN = """
def predicted(features):
    w = tf1.get_variable("w", [6, 1], initializer=tf1.zeros_initializer())
    rows = tf1.get_variable("rows", [9, 1], initializer=tf1.ones_initializer())
    return features["x"] @ w + tf.reduce_sum(tf.nn.embedding_lookup(rows, features["whole"]), 1)

def data(rows):
    return tf.data.Dataset.from_tensor_slices(({"x": X[:rows], "whole": WHOLE[:rows]}, Y[:rows]))

def receive():
    x = tf1.placeholder(tf.float32, [None, 6], name="x")
    whole = tf1.placeholder(tf.int32, [None, 6], name="whole")
    features = {"x": x, "whole": whole}
    return tf.estimator.export.ServingInputReceiver(features, features)
"""
ESTIMATOR_TRIAL = f"""{_HEAD}
from generic_trainer.estimator import tf
from generic_trainer.trials.estimator import EstimatorTrial, MetricReducer, RunHook
{_MODEL_FN}
class Mean(MetricReducer):
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def accumulate(self, metric):
        self.sum, self.count = self.sum + metric.sum(), self.count + metric.size
        return self.sum, self.count

    def cross_slot_reduce(self, per_slot_metrics):
        print("slots:", len(per_slot_metrics), flush=True)
        sums, counts = zip(*per_slot_metrics)
        return sum(sums) / sum(counts)

class Told(RunHook):
    def on_checkpoint_end(self, checkpoint_dir):
        print("checkpoint:", tf.io.gfile.exists(checkpoint_dir), flush=True)

class Slots(EstimatorTrial):
    def __init__(self, context):
        self.context = context

    def model_fn(self, features, labels, mode):
        y = predicted(features)
        if mode == "infer":
            return tf.estimator.EstimatorSpec(mode, {{"y": y}})
        loss = tf.reduce_mean((y - labels) ** 2)
        if mode == "eval":
            mae = tf.keras.metrics.MeanAbsoluteError()
            mae.update_state(labels, y)
            make = self.context.experimental.make_metric
            mine = make(tf.abs(y - labels), Mean(), float)
            metrics = {{"mae": mae, "rmse": tf1.metrics.root_mean_squared_error(labels, y)}}
            return tf.estimator.EstimatorSpec(
                mode, loss=loss, eval_metric_ops={{**metrics, "mine": mine}}
            )
        optimizer = self.context.wrap_optimizer(tf1.train.AdamOptimizer(0.1))
        step = optimizer.minimize(loss, tf1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

    def build_estimator(self):
        tell(self.context)
        return tf.estimator.Estimator(self.model_fn)

    def read(self, rows):
        return self.context.wrap_dataset(data(rows)).batch(self.context.get_per_slot_batch_size())

    def build_train_spec(self):
        return tf.estimator.TrainSpec(lambda: self.read(24), hooks=[Told()])

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(lambda: self.read(20), steps=None)

    def build_serving_input_receiver_fns(self):
        return {{"plain": receive}}
"""
PEDL_ESTIMATOR = f"""{_HEAD}
from generic_trainer.estimator import tf
from generic_trainer.trials.tensorflow import EstimatorTrial, wrap_dataset, wrap_optimizer
{_MODEL_FN}
class Slots(EstimatorTrial):
    def model_fn(self, features, labels, mode):
        y = predicted(features)
        if mode == "infer":
            return tf.estimator.EstimatorSpec(mode, {{"y": y}})
        loss = tf.reduce_mean((y - labels) ** 2)
        optimizer = wrap_optimizer(tf1.train.AdamOptimizer(0.1))
        step = optimizer.minimize(loss, tf1.train.get_global_step())
        metrics = {{"mae": tf1.metrics.mean_absolute_error(labels, y)}}
        return tf.estimator.EstimatorSpec(mode, None, loss, step, metrics)

    def build_estimator(self, hparams):
        return tf.estimator.Estimator(self.model_fn)

    def build_train_spec(self, hparams):
        return tf.estimator.TrainSpec(lambda: wrap_dataset(data(24).batch(8)))

    def build_validation_spec(self, hparams):
        return tf.estimator.EvalSpec(lambda: wrap_dataset(data(17).batch(8)), steps=None)
"""
TRAINER_FN = f"""{_HEAD}
from generic_trainer.estimator import tf
{_MODEL_FN}
def model_fn(features, labels, mode, config):
    print("told:", mode, config.task_type, config.is_chief, flush=True)
    y = predicted(features)
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, {{"y": y}})
    loss = tf.reduce_mean((y - labels) ** 2)
    optimizer = tf1.train.AdamOptimizer(0.1)
    pairs = [(tf.clip_by_norm(g, 1.0), v) for g, v in optimizer.compute_gradients(loss)]
    step = optimizer.apply_gradients(pairs, tf1.train.get_global_step())
    metrics = {{"mae": tf1.metrics.mean_absolute_error(labels, y)}}
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step, eval_metric_ops=metrics)

class Told(tf1.train.SessionRunHook):
    def begin(self):
        self.w = next(one for one in tf1.global_variables() if one.op.name == "w")

    def end(self, session):
        print("w:", session.run(self.w).ravel().tolist(), flush=True)

def read(config):
    whole = data(21).shard(config.num_worker_replicas, config.global_id_in_cluster)
    print("told: read", config.task_type, config.is_chief, flush=True)
    return whole.batch(8).repeat()

def trainer_fn(trainer_fn_args, schema):
    folder = trainer_fn_args.serving_model_dir
    train = tf.estimator.TrainSpec(read, 10, hooks=[Told()])
    exporter = tf.estimator.FinalExporter("final", receive)
    return {{
        "estimator": tf.estimator.Estimator(model_fn, folder),
        "train_spec": train,
        "eval_spec": tf.estimator.EvalSpec(
            lambda: data(24).batch(8), steps=None, exporters=exporter
        ),
    }}
"""
