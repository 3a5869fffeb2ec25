"""The object that is saved, and its signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.training.export._features import EXAMPLES, Features
from generic_trainer.training.export._inputs import ModelInputs, inference_arguments
from generic_trainer.training.export._saving import ModelParts
from generic_trainer.training.export._tensors import (
    dense_only,
    from_tensors,
    named_outputs,
    tensor_specs,
)


class Predictor:
    """From raw features to named outputs."""

    def __init__(
        self,
        model: Any,
        features: Features,
        inputs: ModelInputs,
        preprocess: Callable[[dict[str, Any]], Any] | None,
        postprocess: Callable[[Any], Any] | None,
        output_name: str,
    ) -> None:
        """Joins them; see `export_model` for what they are."""
        self._features = features
        self._inputs = inputs
        self._preprocess = preprocess or inputs.arguments
        self._postprocess = postprocess or (lambda outputs: outputs)
        self._model = model
        self._arguments = inference_arguments(model)
        self._output_name = output_name
        # The user's code is traced as a tf.function of its own, so that its Python `if` and `for`
        # over tensors work as they do elsewhere.
        self._call = tf.function(self._user_code)

    def __call__(self, raw: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Predicts.

        Raises:
            ExportError: the model cannot be called with the features, or returns no tensors.
        """
        features = self._features(raw)
        try:
            outputs = self._call(features)
        except Exception as error:
            specs = {name: tf.type_spec_from_value(value) for name, value in features.items()}
            raise ExportError(
                f"the model cannot be called with {self._inputs.structure} out of the features "
                f"{specs}: {error}"
            ) from error
        names = getattr(self._model, "output_names", None)
        return named_outputs(outputs, self._output_name, names)

    def _user_code(self, features: dict[str, Any]) -> Any:
        outputs = self._model(self._preprocess(features), **self._arguments)
        return self._postprocess(outputs)


class Servable(ModelParts):
    """What is saved: no model, only its variables, tables, assets and the functions that serve."""

    def __init__(
        self, model: Any, features: Features, inputs: ModelInputs, predictor: Predictor
    ) -> None:
        """Takes the parts out of the model."""
        super().__init__(model, features.tracked)
        self._features = features
        self._raw_spec = inputs.raw_spec
        self._predict = predictor

    def serve(self) -> tf.types.experimental.PolymorphicFunction:
        """Returns the signature that predicts from serialized tf.Examples, string [N]."""

        def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._predict(tf.io.parse_example(examples, self._raw_spec))

        return _signature(serve, EXAMPLES)

    def serve_raw(self) -> tf.types.experimental.PolymorphicFunction:
        """Returns the signature that predicts from raw features, a tensor for each."""

        def serve_raw(tensors: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return self._predict(from_tensors(tensors, self._raw_spec))

        return _signature(serve_raw, tensor_specs(self._raw_spec))

    def transform(
        self, raw_names: Sequence[str] | None = None
    ) -> tf.types.experimental.PolymorphicFunction:
        """Returns the signature that computes features, for the Evaluator.

        Args:
            raw_names: the raw features it parses; None for all.
        """
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

    def classify(self, class_names: Sequence[str]) -> tf.types.experimental.PolymorphicFunction:
        """Returns the signature of TF Serving's Classify API: classes and scores, each [N, K]."""

        def classify(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = self._predict(tf.io.parse_example(inputs, self._raw_spec))
            scores = _scores(outputs, class_names)
            labels = tf.broadcast_to(tf.constant(list(class_names)), tf.shape(scores))
            return {"classes": labels, "scores": scores}

        return _signature(classify, tf.TensorSpec([None], tf.string, name="inputs"))


def _signature(
    function: Callable[..., Any], spec: Any
) -> tf.types.experimental.PolymorphicFunction:
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
