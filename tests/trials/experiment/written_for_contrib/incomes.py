"""Wide and deep over CSV files read by queues: an Experiment in the style of 2017."""

import argparse
import os

import tensorflow as tf
from tensorflow.contrib.learn.python.learn import learn_runner
from tensorflow.contrib.learn.python.learn.estimators import run_config
from tensorflow.contrib.learn.python.learn.utils import input_fn_utils, saved_model_export_utils
from tensorflow.contrib.training.python.training import hparam

COLUMNS = ["age", "hours", "occupation", "town", "income"]
DEFAULTS = [[0.0], [0.0], [""], [""], [""]]
LABELS = ["<=50K", ">50K"]

layers = tf.contrib.layers


def raw_columns():
    return {
        "age": layers.real_valued_column("age"),
        "hours": layers.real_valued_column(column_name="hours", normalizer=lambda x: x / 40.0),
        "occupation": layers.sparse_column_with_keys(
            column_name="occupation", keys=["clerk", "cook", "judge"], combiner="sum"
        ),
        "town": layers.sparse_column_with_hash_bucket("town", hash_bucket_size=20),
    }


def build_estimator(config, embedding_size, hidden_units):
    columns = raw_columns()
    ages = layers.bucketized_column(columns["age"], boundaries=[25, 40, 60])
    wide = [
        layers.crossed_column([columns["town"], columns["occupation"]], hash_bucket_size=50),
        layers.crossed_column([ages, columns["town"]], hash_bucket_size=50),
        ages,
        columns["occupation"],
    ]
    deep = [
        layers.embedding_column(columns["town"], dimension=embedding_size),
        layers.one_hot_column(columns["occupation"]),
        columns["hours"],
    ]
    return tf.contrib.learn.DNNLinearCombinedClassifier(
        config=config,
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=hidden_units,
        weight_column_name=None,
        fix_global_step_increment_bug=True,
    )


def parse_csv(rows):
    rows = tf.expand_dims(rows, -1)
    return dict(zip(COLUMNS, tf.decode_csv(rows, record_defaults=DEFAULTS), strict=True))


def parse_label(labels):
    table = tf.contrib.lookup.index_table_from_tensor(mapping=tf.constant(LABELS))
    return table.lookup(labels)


def generate_input_fn(pattern, num_epochs=None, shuffle=True, batch_size=20):
    def input_fn():
        files = tf.train.string_input_producer(
            tf.train.match_filenames_once(pattern), num_epochs=num_epochs, shuffle=shuffle
        )
        _, rows = tf.TextLineReader(skip_header_lines=1).read_up_to(files, num_records=batch_size)
        features = parse_csv(rows)
        if shuffle:
            features = tf.train.shuffle_batch(
                features,
                batch_size,
                capacity=200,
                min_after_dequeue=40,
                enqueue_many=True,
                allow_smaller_final_batch=True,
            )
        return features, parse_label(features.pop("income"))

    return input_fn


def json_serving_fn():
    inputs = {
        name: tf.placeholder(shape=[None], dtype=type_, name=name)
        for name, type_ in zip(COLUMNS[:-1], [tf.float32] * 2 + [tf.string] * 2, strict=True)
    }
    features = {name: tf.expand_dims(tensor, -1) for name, tensor in inputs.items()}
    return input_fn_utils.InputFnOps(features, None, inputs)


def generate_experiment_fn(**experiment_args):
    def experiment_fn(config, hparams):
        return tf.contrib.learn.Experiment(
            build_estimator(config, embedding_size=4, hidden_units=[hparams.first_layer, 4]),
            train_input_fn=generate_input_fn(hparams.train_files),
            eval_input_fn=generate_input_fn(hparams.eval_files, num_epochs=1, shuffle=False),
            export_strategies=[
                saved_model_export_utils.make_export_strategy(
                    json_serving_fn, exports_to_keep=1, default_output_alternative_key=None
                )
            ],
            **experiment_args,
        )

    return experiment_fn


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-files", required=True)
    parser.add_argument("--eval-files", required=True)
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--first-layer", type=int, default=8)
    parser.add_argument("--train-steps", type=int)
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    learn_runner.run(
        generate_experiment_fn(min_eval_frequency=0, train_steps=args.train_steps, eval_steps=2),
        run_config=run_config.RunConfig(model_dir=args.job_dir),
        hparams=hparam.HParams(**args.__dict__),
    )
