"""How every penguin module file writes its model: raw penguins in, a species out.

`tf.saved_model.save` on a Keras 3 model writes variables that Python finds again and that
BulkInferrer and the C++ servers do not. Here a `tf.Module` holds TensorFlow's own variables, which
every loader finds, under Keras 2 and Keras 3 alike.
"""

from __future__ import annotations

import tensorflow as tf
import tensorflow_transform as tft
from penguin_features import FEATURE_WIDTHS, LABEL, SPECIES
from tfx.components.trainer.fn_args_utils import FnArgs

EXAMPLES = tf.TensorSpec([None], tf.string, name="examples")


class PenguinServer(tf.Module):
    """What is saved: the transform graph, the model, and two signatures over serialized Examples.

    Attributes:
        model_weights: The model's variables, in the order of `model.weights`; there again after
            `tf.saved_model.load`.
    """

    def __init__(self, model: tf.keras.Model, graph: tft.TFTransformOutput) -> None:
        """Joins them.

        Args:
            model: Maps the transformed features (a dict) to probabilities float32 [N, 3].
            graph: The transform graph that made those features.
        """
        super().__init__()
        self.model_weights = [_tf_variable(weight) for weight in model.weights]
        self._transform = graph.transform_features_layer()
        self._feature_spec = graph.raw_feature_spec()
        self._predict = lambda features: model(features, training=False)

    @tf.function(input_signature=[EXAMPLES])
    def serve(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """Classifies penguins; their label is neither needed nor looked at.

        Args:
            examples: Serialized tf.Examples with raw features, string [N].

        Returns:
            ``probabilities`` float32 [N, 3] in the order of `SPECIES`, ``species`` string [N].
        """
        unlabelled = {key: spec for key, spec in self._feature_spec.items() if key != LABEL}
        features = self._transform(tf.io.parse_example(examples, unlabelled))
        probabilities = self._predict({name: features[name] for name in FEATURE_WIDTHS})
        species = tf.gather(tf.constant(SPECIES), tf.argmax(probabilities, axis=1))
        return {"probabilities": probabilities, "species": species}

    @tf.function(input_signature=[EXAMPLES])
    def transform_features(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """Transforms features and label, for the Evaluator.

        Args:
            examples: Serialized tf.Examples with raw features, string [N].

        Returns:
            What `penguin_features.preprocessing_fn` returns.
        """
        return self._transform(tf.io.parse_example(examples, self._feature_spec))


def export_for_serving(model: tf.keras.Model, fn_args: FnArgs) -> None:
    """Writes `model` as a SavedModel with both signatures to `fn_args.serving_model_dir`."""
    server = PenguinServer(model, tft.TFTransformOutput(fn_args.transform_graph_path))
    signatures = {
        "serving_default": server.serve,
        "transform_features": server.transform_features,
    }
    tf.saved_model.save(server, fn_args.serving_model_dir, signatures)


def _tf_variable(weight: object) -> tf.Variable:
    # A Keras 3 weight wraps TensorFlow's variable, a Keras 2 weight is one.
    return weight if isinstance(weight, tf.Variable) else weight.value
