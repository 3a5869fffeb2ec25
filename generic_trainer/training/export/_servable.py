"""The object that is saved, and its signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.training.export._examples import EXAMPLES
from generic_trainer.training.export._features import Features
from generic_trainer.training.export._inputs import accepts_training
from generic_trainer.training.export._matching import Plan
from generic_trainer.training.export._outputs import dense_only, named_outputs
from generic_trainer.training.export._raw import from_tensors, tensor_specs
from generic_trainer.training.export._tracked import tracked_parts, weights_of

__all__ = ["Predictor", "Servable"]


class Predictor:
    """From raw features to named outputs."""

    def __init__(
        self,
        model: Any,
        features: Features,
        plan: Plan,
        preprocess: Callable[[dict[str, Any]], Any] | None,
        postprocess: Callable[[Any], Any] | None,
        output_name: str,
    ) -> None:
        """Joins them; see `export_model` for what they are."""
        self._features = features
        self._plan = plan
        self._preprocess = preprocess or plan.arguments
        self._postprocess = postprocess or (lambda outputs: outputs)
        self._training = {"training": False} if accepts_training(model) else {}
        self._model = model
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
            fed = {name: tf.type_spec_from_value(value) for name, value in features.items()}
            raise ExportError(
                f"the model cannot be called with {self._plan.structure} out of the features "
                f"{fed}: {error}"
            ) from error
        names = getattr(self._model, "output_names", None)
        return named_outputs(outputs, self._output_name, names)

    def _user_code(self, features: dict[str, Any]) -> Any:
        outputs = self._model(self._preprocess(features), **self._training)
        return self._postprocess(outputs)


class Servable(tf.Module):
    """What is saved: no model, only its variables, tables, assets and the functions that serve.

    Attributes:
        model_weights: the model's variables, in the order of `model.weights`; there again after
            `tf.saved_model.load`, for a warm start.
        parts: whatever else has to be saved.
    """

    def __init__(self, model: Any, features: Features, plan: Plan, predictor: Predictor) -> None:
        """Takes the parts out of the model."""
        super().__init__()
        self.model_weights = weights_of(model)
        self.parts = [*tracked_parts(model), *features.tracked]
        self._features = features
        self._raw_spec = plan.raw_spec
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
