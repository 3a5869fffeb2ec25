"""The object that is saved, and its signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.training.export._features import EXAMPLES, Features, type_specs
from generic_trainer.training.export._inputs import ModelInputs, inference_arguments
from generic_trainer.training.export._saving import ModelParts
from generic_trainer.training.export._tensors import (
    dense_only,
    from_tensors,
    named_outputs,
    tensor_specs,
)

Predict = Callable[[Mapping[str, Any]], dict[str, tf.Tensor]]
Signature: TypeAlias = tf.types.experimental.PolymorphicFunction


def make_predict(
    model: Any,
    features: Features,
    inputs: ModelInputs,
    preprocess: Callable[[dict[str, Any]], Any] | None,
    postprocess: Callable[[Any], Any] | None,
    output_name: str,
) -> Predict:
    """Returns the function from raw features to named outputs; see `export_model`.

    It raises `ExportError` where the model cannot be called with the features, or returns no
    tensors.
    """
    prepare = preprocess or inputs.arguments
    arguments = inference_arguments(model)

    # The user's code is traced as a tf.function of its own, so that its Python `if` and `for` over
    # tensors work as they do elsewhere.
    @tf.function
    def user_code(values: dict[str, Any]) -> Any:
        outputs = model(prepare(values), **arguments)
        return postprocess(outputs) if postprocess else outputs

    def predict(raw: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        values = features(raw)
        try:
            outputs = user_code(values)
        except Exception as error:
            raise ExportError(
                f"the model cannot be called with {inputs.structure} out of the features "
                f"{type_specs(values)}: {error}"
            ) from error
        return named_outputs(outputs, output_name, getattr(model, "output_names", None))

    return predict


class Servable(ModelParts):
    """What is saved: no model, only its variables, tables, assets and the functions that serve."""

    def __init__(
        self, model: Any, features: Features, inputs: ModelInputs, predict: Predict
    ) -> None:
        super().__init__(model, features.tracked)
        self._features = features
        self._raw_spec = inputs.raw_spec
        self._predict = predict

    def serve(self) -> Signature:
        """Returns the signature that predicts from serialized tf.Examples, string [N]."""

        def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._predict(tf.io.parse_example(examples, self._raw_spec))

        return _signature(serve, EXAMPLES)

    def serve_raw(self) -> Signature:
        """Returns the signature that predicts from raw features, a tensor for each."""

        def serve_raw(tensors: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return self._predict(from_tensors(tensors, self._raw_spec))

        return _signature(serve_raw, tensor_specs(self._raw_spec))

    def transform(self, raw_names: Sequence[str] | None = None) -> Signature:
        """Returns the signature that computes features out of some raw ones, or all of them."""
        keys = self._features.raw_spec if raw_names is None else raw_names
        spec = {key: self._features.raw_spec[key] for key in keys}

        def transform(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = dense_only(self._features(tf.io.parse_example(examples, spec)))
            if not outputs:
                raise ConfigurationError(
                    f"of the raw features {list(keys)} alone {self._features.origin} computes no "
                    "dense feature, so there is no signature to be made of them"
                )
            return outputs

        return _signature(transform, EXAMPLES)

    def classify(self, class_names: Sequence[str]) -> Signature:
        """Returns the signature of TF Serving's Classify API: classes and scores, each [N, K]."""

        def classify(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = self._predict(tf.io.parse_example(inputs, self._raw_spec))
            scores = _scores(outputs, class_names)
            labels = tf.broadcast_to(tf.constant(list(class_names)), tf.shape(scores))
            return {"classes": labels, "scores": scores}

        return _signature(classify, tf.TensorSpec([None], tf.string, name="inputs"))


def _signature(function: Callable[..., Any], spec: Any) -> Signature:
    return tf.function(function, input_signature=[spec], autograph=False)


def _scores(outputs: Mapping[str, tf.Tensor], class_names: Sequence[str]) -> tf.Tensor:
    shapes = {name: tensor.shape.as_list() for name, tensor in outputs.items()}
    fitting = [name for name, shape in shapes.items() if shape[1:] == [len(class_names)]]
    if len(fitting) != 1:
        raise ConfigurationError(
            f"class_names names {len(class_names)} classes, so exactly one output must be "
            f"[batch, {len(class_names)}], but the outputs are {shapes}"
        )
    return tf.cast(outputs[fitting[0]], tf.float32)
