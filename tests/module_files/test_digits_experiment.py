"""The Experiment on digits trains through the component to a published model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from generic_trainer._core.event_files import last_scalars
from tests.helpers import kept_log, output_artifacts, train, write_examples
from tests.module_files.training import MODULE_FILES

HELD_OUT = 360


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("digits")
    outputs = output_artifacts(folder / "out")
    module = str(MODULE_FILES / "digits_experiment.py")
    train(
        module,
        write_examples(folder / "examples"),
        outputs,
        custom_config={"train_steps": 300},
    )
    return outputs


def test_the_published_model_knows_digits(outputs) -> None:
    model = tf.saved_model.load(str(Path(outputs["model"][0].uri, "Format-Serving")))
    images, labels = load_digits(return_X_y=True)
    images = tf.constant(images[:HELD_OUT].reshape(-1, 8, 8, 1) / 16, tf.float32)
    [given] = model.signatures["serving_default"].structured_input_signature[1]

    found = model.signatures["serving_default"](**{given: images})["class"].numpy()

    assert np.mean(found == labels[:HELD_OUT]) > 0.85
    assert outputs["model"][0].get_string_custom_property("validation") == "passed"


def test_step_loss_and_accuracy_are_on_the_terminal_and_for_tensorboard(outputs) -> None:
    scalars = last_scalars(outputs["model_run"][0].uri)
    log = kept_log(outputs)

    assert {"loss", "accuracy", "eval/loss", "eval/accuracy"} <= scalars.keys()
    assert "step = 200" in log
    assert "Saving dict for global step 300: accuracy = " in log
