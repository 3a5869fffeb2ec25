"""Data for TFX's own examples, and the pipeline that prepares them, of real rows.

The penguins are the Palmer ones; the digits of scikit-learn stand in for MNIST.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipelines._command import BEAM_ON_THIS_MACHINE
from pipelines.penguin_data import write_penguin_csv

__all__ = ["before_training", "run_components", "transform_of", "write_digits", "write_penguins"]

_SPECIES = ["Adelie", "Chinstrap", "Gentoo"]
_MEASUREMENTS = {
    "culmen_length_mm": "bill_length_mm",
    "culmen_depth_mm": "bill_depth_mm",
    "flipper_length_mm": "flipper_length_mm",
    "body_mass_g": "body_mass_g",
}


def write_penguins(folder: Path) -> None:
    """Writes the penguins as TFX's example has them: whole rows, numbers, and its column names.

    Args:
        folder: there already; CsvExampleGen takes it. A folder `original` is made beside it.
    """
    with write_penguin_csv(folder.parent / "original").open() as file:
        rows = list(_penguin_rows(csv.DictReader(file)))
    with (folder / "penguins.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=["species", *_MEASUREMENTS])
        writer.writeheader()
        writer.writerows(rows)


def _penguin_rows(penguins: Iterator[dict[str, str]]) -> Iterator[dict[str, float]]:
    for penguin in penguins:
        if all(penguin[name] for name in _MEASUREMENTS.values()):
            numbers = {name: float(penguin[original]) for name, original in _MEASUREMENTS.items()}
            yield {"species": _SPECIES.index(penguin["species"]), **numbers}


def write_digits(folder: Path) -> None:
    """Writes handwritten digits in the form of MNIST: 28 x 28 pixels in [-0.5, 0.5].

    Args:
        folder: there already; ImportExampleGen takes it.
    """
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.kron(digits.images / 16, np.ones([3, 3])) - 0.5
    images = np.pad(images, [(0, 0), (2, 2), (2, 2)], constant_values=-0.5).reshape(-1, 784)
    with tf.io.TFRecordWriter(str(folder / "digits.gz"), "GZIP") as writer:
        for image, digit in zip(images, digits.target, strict=True):
            example = tf.train.Example()
            example.features.feature["image_floats"].float_list.value[:] = image
            example.features.feature["image_class"].int64_list.value[:] = [digit]
            writer.write(example.SerializeToString())


def before_training(data: Path, *, is_csv: bool) -> list[Any]:
    """Returns the components that make examples, their statistics and their schema, in this order.

    Args:
        data: folder with CSV files, or with TFRecord files of tf.Examples.
        is_csv: which of the two.
    """
    from tfx import v1 as tfx

    generate = tfx.components.CsvExampleGen if is_csv else tfx.components.ImportExampleGen
    examples = generate(input_base=str(data))
    statistics = tfx.components.StatisticsGen(examples=examples.outputs["examples"])
    schema = tfx.components.SchemaGen(
        statistics=statistics.outputs["statistics"], infer_feature_shape=True
    )
    return [examples, statistics, schema]


def transform_of(module: str, examples: Any, schema: Any) -> Any:
    """Returns the Transform with the `preprocessing_fn` of a module, given by its import path."""
    from tfx import v1 as tfx

    return tfx.components.Transform(
        examples=examples.outputs["examples"],
        schema=schema.outputs["schema"],
        preprocessing_fn=f"{module}.preprocessing_fn",
        disable_statistics=True,
    )


def run_components(components: Sequence[Any], folder: Path) -> str:
    """Runs components under the local orchestrator; returns the path of the metadata."""
    from tfx import v1 as tfx

    metadata_path = str(folder / "metadata.db")
    pipeline = tfx.dsl.Pipeline(
        pipeline_name="tfx-example",
        pipeline_root=str(folder / "artifacts"),
        components=list(components),
        metadata_connection_config=(
            tfx.orchestration.metadata.sqlite_metadata_connection_config(metadata_path)
        ),
        beam_pipeline_args=list(BEAM_ON_THIS_MACHINE),
    )
    tfx.orchestration.LocalDagRunner().run(pipeline)
    return metadata_path
