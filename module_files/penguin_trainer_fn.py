"""The first TFX Trainer's way: `trainer_fn` returns an estimator and what to train it with.

Such module files run as they are but for one line: ``tf`` comes from `generic_trainer.estimator`,
because TensorFlow has had no ``tf.estimator`` since 2.16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow_transform as tft
from penguin_features import FEATURE_WIDTHS, LABEL, SPECIES, preprocessing_fn, read_batches
from penguin_features import transformed_name as xf
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform.tf_metadata import schema_utils
from tfx.components.trainer.fn_args_utils import FnArgs

from generic_trainer.estimator import tf

__all__ = ["preprocessing_fn", "trainer_fn"]


def trainer_fn(trainer_fn_args: FnArgs, schema: schema_pb2.Schema) -> dict[str, Any]:
    """Builds the estimator; GenericTrainer trains it and publishes what the exporter writes.

    Args:
        trainer_fn_args: What TFX hands to `run_fn`. Its `serving_model_dir` is the estimator's
            folder, with checkpoints and event files.
        schema: Of the raw examples.
    """
    graph = tft.TFTransformOutput(trainer_fn_args.transform_graph_path)
    exporter = tf.estimator.FinalExporter("penguin", lambda: _receive_raw_examples(graph, schema))
    return {
        "estimator": tf.estimator.Estimator(
            _model_fn,
            config=tf.estimator.RunConfig(trainer_fn_args.serving_model_dir, tf_random_seed=1),
            warm_start_from=trainer_fn_args.base_model,
        ),
        "train_spec": tf.estimator.TrainSpec(
            lambda: read_batches(trainer_fn_args, trainer_fn_args.train_files),
            max_steps=trainer_fn_args.train_steps,
        ),
        "eval_spec": tf.estimator.EvalSpec(
            lambda: read_batches(trainer_fn_args, trainer_fn_args.eval_files),
            steps=trainer_fn_args.eval_steps,
            exporters=exporter,
        ),
    }


def _receive_raw_examples(graph: tft.TFTransformOutput, schema: schema_pb2.Schema) -> Any:
    """Returns what turns serialized raw tf.Examples, a string [N], into transformed features."""
    spec = schema_utils.schema_as_feature_spec(schema).feature_spec
    examples = tf.compat.v1.placeholder(tf.string, [None], name="examples")
    raw = tf.io.parse_example(examples, spec)
    return tf.estimator.export.ServingInputReceiver(
        graph.transform_raw_features(raw), {"examples": examples}
    )


def _model_fn(features: Mapping[str, Any], labels: Any, mode: str) -> Any:
    """Builds one dense network, as `penguin_model` does.

    Args:
        features: The transformed features; in a serving graph the label is among them.
        labels: int64 [N, 1], None in a serving graph.
        mode: What the graph is for.
    """
    inputs = tf.concat([tf.cast(features[name], tf.float32) for name in FEATURE_WIDTHS], axis=1)
    hidden = tf.compat.v1.layers.dense(inputs, 16, tf.nn.relu)
    logits = tf.compat.v1.layers.dense(hidden, len(SPECIES))
    if mode == tf.estimator.ModeKeys.PREDICT:
        return _serving_spec(features, tf.nn.softmax(logits))
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = tf.compat.v1.train.AdamOptimizer(1e-2)
    accuracy = tf.compat.v1.metrics.accuracy(labels[:, 0], tf.argmax(logits, axis=1))
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.compat.v1.train.get_global_step()),
        eval_metric_ops={"accuracy": accuracy},
    )


def _serving_spec(features: Mapping[str, Any], probabilities: Any) -> Any:
    """Exports `serving_default`, and `transform_features`, which gives the Evaluator the label."""
    species = tf.gather(tf.constant(SPECIES), tf.argmax(probabilities, axis=1))
    predictions = {"probabilities": probabilities, "species": species}
    output = tf.estimator.export.PredictOutput
    return tf.estimator.EstimatorSpec(
        tf.estimator.ModeKeys.PREDICT,
        predictions,
        export_outputs={
            "serving_default": output(predictions),
            "transform_features": output({xf(LABEL): features[xf(LABEL)]}),
        },
    )
