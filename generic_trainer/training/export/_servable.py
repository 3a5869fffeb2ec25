"""The functions behind the signatures of an export, and their outputs."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from generic_trainer.errors import ConfigurationError, ExportError, raise_problems
from generic_trainer.training.export._features import EXAMPLES, Features, type_specs
from generic_trainer.training.export._inputs import inference_arguments

# From raw features to named outputs.
Compute = Callable[[dict[str, Any]], dict[str, tf.Tensor]]
Signature: TypeAlias = tf.types.experimental.PolymorphicFunction


def signature(compute: Compute, spec: Mapping[str, Any]) -> Signature:
    """Returns a signature that takes serialized tf.Examples, string [N].

    Args:
        compute: gets the raw features.
        spec: raw feature name → `tf.io` parsing configuration, of the features to parse.
    """

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return compute(tf.io.parse_example(examples, spec))

    return tf.function(serve, input_signature=[EXAMPLES], autograph=False)


def make_predict(
    model: Any,
    features: Features,
    inputs: Any,
    preprocess: Callable[[dict[str, Any]], Any] | None,
    postprocess: Callable[[Any], Any] | None,
    output_name: str,
) -> Compute:
    """Returns the function that predicts; see `export_model`.

    It raises `ExportError` if the model cannot be called with the features, or does not return
    tensors. `inputs` is the structure of `match_inputs`.
    """
    prepare = preprocess or (lambda values: tf.nest.map_structure(values.__getitem__, inputs))
    arguments = inference_arguments(model)

    # The user's code is traced as a tf.function of its own, so that its Python `if` and `for` over
    # tensors work as they do elsewhere.
    @tf.function
    def user_code(values: dict[str, Any]) -> Any:
        outputs = model(prepare(values), **arguments)
        return postprocess(outputs) if postprocess else outputs

    def predict(raw: dict[str, Any]) -> dict[str, tf.Tensor]:
        values = features.compute(raw)
        try:
            outputs = user_code(values)
        except Exception as error:
            raise ExportError(
                f"the model cannot be called with {inputs} out of the features "
                f"{type_specs(values)}: {error}"
            ) from error
        return named_outputs(outputs, output_name, getattr(model, "output_names", None))

    return predict


def make_transform(features: Features) -> Compute:
    """Returns the function that computes the dense features, for the Evaluator.

    Others are left out: a signature cannot return sparse features, and if they were filled up,
    their width would depend on the other rows of the batch.
    """

    def transform(raw: dict[str, Any]) -> dict[str, tf.Tensor]:
        computed = features.compute(raw)
        dense = {name: value for name, value in computed.items() if isinstance(value, tf.Tensor)}
        if not dense:
            raise ConfigurationError(
                f"from the raw features {list(raw)} alone {features.origin} computes only sparse "
                "features, which a signature cannot return"
            )
        return dense

    return transform


def named_outputs(outputs: Any, output_name: str, names: Any = None) -> dict[str, tf.Tensor]:
    """Returns the outputs of a signature.

    1. A tensor is called `output_name`.
    2. A dict and a named tuple keep their names.
    3. A list takes `names`, the model's `output_names`, if there are as many; else `output_name`
       with `_0`, `_1`, ...

    Raises:
        ExportError: some are not tensors with a row per example; lists all problems.
    """
    named = {
        name: tf.convert_to_tensor(value) if hasattr(value, "__array__") else value
        for name, value in _named(outputs, output_name, names).items()
    }
    problems = [
        f"output {name!r} should be a dense tensor [batch, ...], found a {type(value).__name__} "
        f"of shape {getattr(value, 'shape', 'unknown')}"
        for name, value in named.items()
        if not isinstance(value, tf.Tensor) or value.shape.rank == 0
    ]
    remedy = "the model's outputs cannot be served (change them with postprocess=)"
    raise_problems(ExportError, remedy, problems)
    return named


def _named(outputs: Any, output_name: str, names: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items()}
    if hasattr(outputs, "_asdict"):
        return dict(outputs._asdict())
    if not isinstance(outputs, (list, tuple)):
        return {output_name: outputs}
    if not names or len(names) != len(outputs):
        names = [f"{output_name}_{index}" for index in range(len(outputs))]
    return dict(zip(names, outputs, strict=True))
