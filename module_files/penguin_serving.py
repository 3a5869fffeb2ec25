"""How every penguin module file writes its model: raw penguins in, a species out.

`tf.saved_model.save` on a Keras 3 model writes variables that Python finds again and the C++
servers and BulkInferrer do not. `ExportArchive` tracks them properly under Keras 2 and Keras 3.
"""

from __future__ import annotations

import tensorflow as tf
import tensorflow_transform as tft
from penguin_features import FEATURE_WIDTHS, LABEL, SPECIES
from tfx import v1 as tfx

WEIGHTS = "model_weights"


def export_for_serving(model: tf.keras.Model, fn_args: tfx.components.FnArgs) -> None:
    """Writes `model` to `fn_args.serving_model_dir`.

    Both signatures take serialized tf.Examples with raw features, a string tensor `examples` [N].
    ``serving_default`` gives ``probabilities`` float32 [N, 3] in the order of `SPECIES` and
    ``species`` string [N]; ``transform_features`` gives the transformed features, the label among
    them, for the Evaluator. The weights can be had back under `WEIGHTS` after loading.

    Args:
        model: Maps the transformed features (a dict) to probabilities float32 [N, 3].
        fn_args: What TFX hands to `run_fn`.
    """
    graph = tft.TFTransformOutput(fn_args.transform_graph_path)
    transform = graph.transform_features_layer()
    eval_spec = graph.raw_feature_spec()
    serving_spec = {key: spec for key, spec in eval_spec.items() if key != LABEL}

    def transform_features(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return transform(tf.io.parse_example(examples, eval_spec))

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        features = transform(tf.io.parse_example(examples, serving_spec))
        probabilities = model({name: features[name] for name in FEATURE_WIDTHS}, training=False)
        species = tf.gather(tf.constant(SPECIES), tf.argmax(probabilities, axis=1))
        return {"probabilities": probabilities, "species": species}

    signature = [tf.TensorSpec([None], tf.string, name="examples")]
    archive = tf.keras.export.ExportArchive()
    archive.track(model)
    archive.track(transform)
    archive.add_endpoint("serving_default", serve, signature)
    archive.add_endpoint("transform_features", transform_features, signature)
    archive.add_variable_collection(WEIGHTS, model.weights)
    archive.write_out(fn_args.serving_model_dir)
