"""The EstimatorTrial on iris trains through the component to a published model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_iris
from tfx.types import artifact_utils, standard_artifacts

from tests.helpers import artifact_at, output_artifacts, train
from tests.module_files.training import MODULE_FILES

pytestmark = pytest.mark.slow

FEATURES = ("sepal_length", "sepal_width", "petal_length", "petal_width")
CONFIG = {
    "data": {"validation_records": 30},
    "hyperparameters": {
        "global_batch_size": 30,
        "layer_size": 16,
        "learning_rate": {"type": "categorical", "vals": [1e-5, 1e-2]},
    },
    "records_per_epoch": 120,
    "min_validation_period": {"epochs": 10},
    "searcher": {
        "name": "grid",
        "metric": "accuracy",
        "smaller_is_better": False,
        "max_length": {"epochs": 30},
    },
}


def flowers() -> tuple[list[bytes], np.ndarray]:
    """Returns serialized tf.Examples and the species."""
    measured, species = load_iris(return_X_y=True)
    records = []
    for row in measured:
        features = {
            name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
            for name, value in zip(FEATURES, row, strict=True)
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        records.append(example.SerializeToString())
    return records, species


def write_flowers(folder: Path):
    for split in ("train", "eval"):
        (folder / f"Split-{split}").mkdir(parents=True)
        path = str(folder / f"Split-{split}" / "data_tfrecord-00000.gz")
        with tf.io.TFRecordWriter(path, "GZIP") as writer:
            for record in flowers()[0]:
                writer.write(record)
    artifact = artifact_at(standard_artifacts.Examples, folder)
    artifact.split_names = artifact_utils.encode_split_names(["train", "eval"])
    return artifact


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("iris")
    outputs = output_artifacts(folder / "out")
    module = str(MODULE_FILES / "iris_estimator_trial.py")
    train(module, write_flowers(folder / "examples"), outputs, custom_config=CONFIG)
    return outputs


def test_the_published_model_knows_flowers(outputs) -> None:
    model = tf.saved_model.load(str(Path(outputs["model"][0].uri, "Format-Serving")))
    records, species = flowers()

    found = model.signatures["predict"](tf.constant(records))["class_ids"].numpy()

    assert np.mean(found[:, 0] == species) > 0.9


def test_the_better_trial_is_published(outputs) -> None:
    trials = json.loads(Path(outputs["model_run"][0].uri, "trials.json").read_text())

    slow, fast = trials
    assert [slow["batches"], fast["batches"]] == [120, 120]
    assert fast["best"] > slow["best"]
    assert (slow["exported"], fast["exported"]) == (False, True)
    assert [entry["batches"] for entry in fast["history"] if "validation" in entry] == [40, 80, 120]


def test_the_model_was_checked(outputs) -> None:
    assert outputs["model"][0].get_string_custom_property("validation") == "passed"
