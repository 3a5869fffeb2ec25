"""A model function over gzipped tf.Examples, with targets: in the style of 2017 and 2018."""

import sys

import tensorflow as tf
from tensorflow.contrib import learn
from tensorflow.contrib.learn.python.learn.estimators import model_fn as model_fn_lib
from tensorflow.python.estimator.model_fn import ModeKeys as Modes

SPEC = {
    "miles": tf.FixedLenFeature([1], tf.float32),
    "company": tf.VarLenFeature(tf.string),
    "tips": tf.FixedLenFeature([1], tf.float32),
}
COMPANIES = ["yellow", "blue"]


def gzip_reader_fn():
    gzip = tf.python_io.TFRecordOptions(tf.python_io.TFRecordCompressionType.GZIP)
    return tf.TFRecordReader(options=gzip)


def input_fn(files, batch_size=16):
    features = tf.contrib.learn.io.read_batch_features(
        files, batch_size, SPEC, reader=gzip_reader_fn, queue_capacity=100
    )
    return features, features.pop("tips")


def model_fn(features, targets, mode):
    miles = tf.contrib.layers.real_valued_column("miles", dimension=1)
    company = tf.contrib.layers.sparse_column_with_keys("company", COMPANIES)
    columns = [miles, tf.contrib.layers.embedding_column(company, 2, combiner="mean")]
    net = tf.contrib.layers.input_from_feature_columns(features, columns, scope="inputs")
    net = tf.contrib.layers.stack(net, tf.contrib.layers.fully_connected, [8, 4])
    tips = tf.contrib.layers.linear(net, 1, scope="tips")
    assert net.shape[1].value == 4
    if mode == Modes.PREDICT:
        return model_fn_lib.ModelFnOps(
            mode,
            predictions={"tips": tips},
            output_alternatives={None: (None, {"tips": tips})},
        )
    loss = tf.losses.mean_squared_error(targets, tips)
    train_op = tf.contrib.layers.optimize_loss(
        loss, tf.contrib.framework.get_global_step(), learning_rate=0.01, optimizer="Adagrad"
    )
    return {"tips": tips}, loss, train_op


def serving_input_fn():
    spec = {name: SPEC[name] for name in ("miles", "company")}
    return learn.utils.input_fn_utils.build_parsing_serving_input_fn(spec)()


def experiment_fn(output_dir):
    files = sys.argv[1]
    return learn.Experiment(
        learn.Estimator(model_fn=model_fn, model_dir=output_dir),
        train_input_fn=lambda: input_fn(files),
        eval_input_fn=lambda: input_fn(files),
        eval_metrics={
            "error": learn.MetricSpec(
                metric_fn=tf.contrib.metrics.streaming_mean_absolute_error, prediction_key="tips"
            )
        },
        train_steps=20,
        eval_steps=2,
        export_strategies=[
            learn.utils.saved_model_export_utils.make_export_strategy(serving_input_fn)
        ],
    )


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.INFO)
    learn.learn_runner.run(experiment_fn, sys.argv[2])
