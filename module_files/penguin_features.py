"""What every penguin module file shares: the features, their transform, and the reader.

A sibling of the module files, imported by its bare name. It shows that a module file may be split:
GenericTrainer and TFX's Transform both carry it along.

Raw features, all optional, because real penguins were not all measured and sexed:
    four measurements (float or int), ``island`` and ``sex`` (bytes), and the label ``species``.
Transformed features, dense, N penguins to a batch:
    ``<measurement>_xf`` float32 [N, 1]: z-score, 0 (the mean) where it was not measured.
    ``island_xf``, ``sex_xf`` float32 [N, 3] and [N, 2]: one-hot, all zeros where it is unknown.
    ``species_xf`` int64 [N, 1]: index into `SPECIES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tensorflow_transform as tft
from tfx.components.trainer.fn_args_utils import FnArgs
from tfx_bsl.public import tfxio

MEASUREMENTS = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
CATEGORIES = {"island": 3, "sex": 2}
SPECIES = ("Adelie", "Chinstrap", "Gentoo")
LABEL = "species"
BATCH_SIZE = 20


def transformed_name(key: str) -> str:
    """Returns the name that the transformed feature of raw feature `key` has."""
    return f"{key}_xf"


FEATURE_WIDTHS = {
    **{transformed_name(key): 1 for key in MEASUREMENTS},
    **{transformed_name(key): width for key, width in CATEGORIES.items()},
}


def preprocessing_fn(inputs: Mapping[str, tf.SparseTensor]) -> dict[str, tf.Tensor]:
    """Turns raw features into what the model reads; TFX's Transform calls it.

    Args:
        inputs: Raw features, each a sparse tensor of dense shape [N, 0 or 1].

    Returns:
        The transformed features of the module docstring, by name.
    """
    outputs = {}
    for key in MEASUREMENTS:
        # Scaled while sparse, so that the missing ones count neither in the mean nor the variance.
        outputs[transformed_name(key)] = _dense(tft.scale_to_z_score(inputs[key]), 0.0)
    for key, width in CATEGORIES.items():
        index = tft.compute_and_apply_vocabulary(inputs[key], vocab_filename=key)
        one_hot = tf.one_hot(_dense(index, -1), width)
        outputs[transformed_name(key)] = tf.squeeze(one_hot, axis=1)
    is_species = tf.equal(_dense(inputs[LABEL], ""), SPECIES)
    outputs[transformed_name(LABEL)] = tf.argmax(is_species, axis=1)[:, tf.newaxis]
    return outputs


def _dense(column: tf.SparseTensor, default: float | int | str) -> tf.Tensor:
    shape = [column.dense_shape[0], 1]
    dense = tf.sparse.to_dense(tf.SparseTensor(column.indices, column.values, shape), default)
    return tf.ensure_shape(dense, [None, 1])


def read_batches(fn_args: FnArgs, files: Sequence[str], once: bool = False) -> tf.data.Dataset:
    """Reads transformed examples, shuffled and repeated without end.

    Args:
        fn_args: What TFX hands to `run_fn` or `tuner_fn`.
        files: `fn_args.train_files` or `fn_args.eval_files`.
        once: Whether to read each example once, in order: `fit` then validates on the same ones
            after each epoch.

    Returns:
        Batches of (features by name, label [BATCH_SIZE, 1]); the last one of a pass is smaller.
    """
    graph = tft.TFTransformOutput(fn_args.transform_graph_path)
    options = tfxio.TensorFlowDatasetOptions(
        batch_size=BATCH_SIZE,
        label_key=transformed_name(LABEL),
        shuffle=not once,
        shuffle_seed=1,
        num_epochs=1 if once else None,
    )
    return fn_args.data_accessor.tf_dataset_factory(
        files, options, graph.transformed_metadata.schema
    )
