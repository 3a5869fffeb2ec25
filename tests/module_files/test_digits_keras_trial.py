"""The TFKerasTrial on digits trains through the component to a published model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from tests.helpers import output_artifacts, train, write_examples
from tests.module_files.training import MODULE_FILES

HELD_OUT = 360
CONFIG = {
    "data": {"validation_records": HELD_OUT},
    "hyperparameters": {
        "global_batch_size": 32,
        "filters": {"type": "int", "minval": 8, "maxval": 16},
        "dropout": 0.1,
        "learning_rate": 3e-3,
        "patience": 5,
    },
    "records_per_epoch": 1797 - HELD_OUT,
    "min_validation_period": {"epochs": 1},
    "searcher": {
        "metric": "val_accuracy",
        "smaller_is_better": False,
        "max_length": {"epochs": 6},
    },
    "reproducibility": {"experiment_seed": 7},
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("digits")
    outputs = output_artifacts(folder / "out")
    module = str(MODULE_FILES / "digits_keras_trial.py")
    train(module, write_examples(folder / "examples"), outputs, custom_config=CONFIG)
    return outputs


def test_the_published_model_knows_digits(outputs) -> None:
    model = tf.saved_model.load(str(Path(outputs["model"][0].uri, "Format-Serving")))
    images, labels = load_digits(return_X_y=True)
    images = tf.constant(images[:HELD_OUT].reshape(-1, 8, 8, 1) / 16, tf.float32)

    [scores] = model.signatures["serving_default"](image=images).values()

    accuracy = np.mean(scores.numpy().argmax(axis=1) == labels[:HELD_OUT])
    [trial] = json.loads(Path(outputs["model_run"][0].uri, "trials.json").read_text())
    assert accuracy > 0.9
    assert accuracy == pytest.approx(trial["best"], abs=1e-3)


def test_final_metrics_are_on_the_model(outputs) -> None:
    model = outputs["model"][0]

    assert model.get_float_custom_property("trials/1/validation/val_accuracy") > 0.9
    assert model.get_string_custom_property("validation") == "passed"
