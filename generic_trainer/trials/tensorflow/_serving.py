"""From the graph of a trial to a SavedModel."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from generic_trainer._core.protos import read_schema
from generic_trainer.errors import ExportError
from generic_trainer.training import export_model
from generic_trainer.trials.tensorflow._predictions import find_predictions, inputs_of

__all__ = ["export"]

_DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_LONE_INPUT = "inputs"


def export(session: Any, record: Any, outputs: Mapping[str, tf.Tensor], fn_args: Any) -> None:
    """Writes the predictions of a trial's graph as a SavedModel.

    Its signature takes serialized tf.Examples where the pipeline's schema has all features that the
    predictions need, else a tensor per feature.

    Args:
        session: holds the trained variables.
        record: what `build_graph` was called with.
        outputs: what `build_graph` returned.
        fn_args: the argument of `run_fn`.

    Raises:
        ExportError: the graph has no prediction, or sparse inputs.
    """
    components = _components(record)
    predictions = find_predictions(record, components, outputs)
    inputs = inputs_of(predictions.values(), components)
    with tempfile.TemporaryDirectory() as scratch:
        # Loading it back leaves out all that predictions do not need: data, optimizer, loss.
        model = _reloaded(session, inputs, predictions, os.path.join(scratch, "graph"))
        if _in_schema(inputs, fn_args.schema_path):
            export_model(
                _OfFeatures(model, inputs), fn_args, inputs={name: name for name in inputs}
            )
        else:
            tf.saved_model.save(model, fn_args.serving_model_dir, signatures=model.signatures)


def _components(record: Any) -> dict[str, tf.Tensor]:
    """Returns the parts of a record by name: keys and positions, joined."""
    if isinstance(record, tf.Tensor):
        return {_LONE_INPUT: record}
    flat = tf.nest.flatten(record)
    sparse = [part for part in flat if not isinstance(part, tf.Tensor)]
    if sparse:
        raise ExportError(
            f"Records with parts that are no dense tensors cannot be exported: {sparse}. Make them "
            "dense in make_data_loaders, with tf.sparse.to_dense."
        )
    paths = tf.nest.flatten(_paths(record, ()))
    return dict(zip(paths, flat, strict=True))


def _paths(structure: Any, path: tuple[str, ...]) -> Any:
    if isinstance(structure, Mapping):
        return {key: _paths(part, (*path, str(key))) for key, part in structure.items()}
    if isinstance(structure, (list, tuple)):
        # (features, label): a feature's name is its key, without the position.
        return tuple(
            _paths(part, path if isinstance(part, Mapping) else (*path, f"record_{index}"))
            for index, part in enumerate(structure)
        )
    return "_".join(path)


def _reloaded(
    session: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any], directory: str
) -> Any:
    builder = tf.compat.v1.saved_model.Builder(directory)
    with session.graph.as_default():
        signature = tf.compat.v1.saved_model.predict_signature_def(dict(inputs), dict(outputs))
        builder.add_meta_graph_and_variables(
            session, [tf.saved_model.SERVING], {_DEFAULT: signature},
            clear_devices=True, strip_default_attrs=True,
        )  # fmt: skip
    builder.save()
    return tf.saved_model.load(directory)


def _in_schema(inputs: Mapping[str, Any], schema_path: str | None) -> bool:
    if not schema_path:
        return False
    return inputs.keys() <= {feature.name for feature in read_schema(schema_path).feature}


class _OfFeatures(tf.Module):
    """Predicts from features as a tf.Example has them: flat, and of three types only."""

    def __init__(self, model: Any, inputs: Mapping[str, tf.Tensor]) -> None:
        super().__init__()
        self.model = model
        self._specs = {name: (like.dtype, like.shape[1:]) for name, like in inputs.items()}

    def __call__(self, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        fed = {
            name: tf.reshape(tf.cast(features[name], dtype), [-1, *shape])
            for name, (dtype, shape) in self._specs.items()
        }
        return self.model.signatures[_DEFAULT](**fed)  # type: ignore[no-any-return]
