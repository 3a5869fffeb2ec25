"""The export of a Keras trial: the model, or its `generator`, and the names of its inputs."""

import logging
import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ExportError
from generic_trainer.training.export import export_model, export_on_tensors, inference_arguments
from generic_trainer.trials._pipeline import are_features, signature_spec

_logger = logging.getLogger(__name__)

_LONE_INPUT = "inputs"
# What Keras calls inputs that the user has not named; it counts them, so they differ by chance.
_UNNAMED = re.compile(r"(keras_tensor|input|.*_input)(_\d+)?")


def export(model: Any, x: Any, fn_args: Any) -> None:
    """Writes a model, without its optimizer.

    Its signature takes serialized tf.Examples where the pipeline's schema, or Transform's, has all
    of the model's inputs by name, else a tensor per input.

    Args:
        model: built.
        x: a batch of its inputs: a tensor, or a tuple or dict of them, each [N, ...].
        fn_args: the argument of `run_fn`.

    Raises:
        ExportError: an input is sparse or ragged, or the model cannot be called.
    """
    names = _names(model, x)
    if are_features(names, fn_args):
        export_model(model, fn_args, inputs=tf.nest.pack_sequence_as(x, names))
    else:
        specs = [*map(signature_spec, names, tf.nest.flatten(x))]
        inputs = tf.nest.pack_sequence_as(x, specs)
        export_on_tensors(model, inputs, fn_args.serving_model_dir)


def servable(model: Any, x: Any) -> tuple[Any, Any]:
    """Returns the model to serve, which may be its `generator`, and a batch for it.

    A model whose parts are called by its `train_step` need not have a `call`. The useful part of
    adversarial networks is the generator.
    """
    try:
        if _declared(model) or model(x, **inference_arguments(model)) is not None:
            return model, x
        reason: Exception = TypeError("call returns None")
    except Exception as error:  # of the user's code, or of Keras for want of it
        reason = error
    generator = getattr(model, "generator", None)
    inputs = getattr(generator, "inputs", None)
    if isinstance(generator, tf.keras.Model) and inputs:
        _logger.info("%s cannot be called; its generator is served", type(model).__name__)
        batch = [tf.zeros([size or 1 for size in one.shape], one.dtype) for one in inputs]
        return generator, batch[0] if len(batch) == 1 else tuple(batch)
    raise ExportError(
        f"{type(model).__name__} cannot be called with its validation data, as serving would: "
        "the result of its `call` is published, or that of its attribute `generator`, a model. "
        f"Return the outputs to serve from `call`. Found: {type(reason).__name__}: {reason}"
    ) from reason


def _names(model: Any, x: Any) -> list[str]:
    """Returns a name for each input, in the order in which `tf.nest` flattens them."""
    flat = tf.nest.flatten(x)
    if isinstance(x, Mapping):
        return list(tf.nest.flatten({key: str(key) for key in x}))
    declared = _declared(model)
    if len(declared) == len(flat) and not any(map(_UNNAMED.fullmatch, declared)):
        return declared
    return [_LONE_INPUT] if len(flat) == 1 else [f"{_LONE_INPUT}_{i}" for i in range(len(flat))]


def _declared(model: Any) -> list[str]:
    try:
        inputs = model.inputs or []
    except (AttributeError, ValueError):  # of a model that was not built from symbolic tensors
        return []
    return [str(one.name).partition(":")[0].replace("/", "_") for one in inputs]
