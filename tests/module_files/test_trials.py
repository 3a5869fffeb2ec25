"""The trials and the Experiment among the examples train to a model that is checked and right."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits, load_iris

from generic_trainer._core.event_files import last_scalars
from tests.examples import example
from tests.helpers import kept_log, output_artifacts, train, write_examples
from tests.module_files.training import MODULE_FILES

HELD_OUT = 360
DIGITS = {
    "data": {"validation_records": HELD_OUT},
    "records_per_epoch": 1797 - HELD_OUT,
    "reproducibility": {"experiment_seed": 7},
}
IRISES = {"data": {"validation_records": 30}, "records_per_epoch": 120}


def trial(epochs: int, validated_each: int, searcher: Any, **hyperparameters: Any) -> Any:
    """Returns the part of a trial's config in which the examples differ."""
    return {
        "hyperparameters": hyperparameters,
        "min_validation_period": {"epochs": validated_each},
        "searcher": {"max_length": {"epochs": epochs}, **searcher},
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "digits_experiment": {"train_steps": 300},
    "digits_keras_trial": {"experiment_config": str(MODULE_FILES / "digits_keras_trial.yaml")},
    "digits_tensorflow_trial": DIGITS
    | trial(
        8,
        2,
        {"name": "random", "max_trials": 2, "metric": "error"},
        global_batch_size=32,
        units=64,
        dropout=0.1,
        learning_rate={"type": "log", "minval": -3, "maxval": -2},
    ),
    "iris_estimator_trial": IRISES
    | trial(
        30,
        10,
        {"name": "grid", "metric": "accuracy", "smaller_is_better": False},
        global_batch_size=30,
        layer_size=16,
        learning_rate={"type": "categorical", "vals": [1e-5, 1e-2]},
    ),
}


class Trained:
    """A published model, and what the run says of it."""

    def __init__(self, module: str, folder: Path) -> None:
        self.outputs = output_artifacts(folder / "out")
        splits = dict.fromkeys(("train", "eval"), flowers()[0]) if "iris" in module else None
        path = str(MODULE_FILES / f"{module}.py")
        examples = write_examples(folder / "examples", splits)
        train(path, examples, self.outputs, custom_config=CONFIGS[module])
        self.artifact = self.outputs["model"][0]
        self.run = Path(self.outputs["model_run"][0].uri)
        self.signatures = tf.saved_model.load(f"{self.artifact.uri}/Format-Serving").signatures
        assert self.artifact.get_string_custom_property("validation") == "passed"

    @property
    def trials(self) -> list[dict[str, Any]]:
        trials: list[dict[str, Any]] = json.loads((self.run / "trials.json").read_text())
        return trials


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Trains a module, once."""
    return functools.cache(lambda module: Trained(module, tmp_path_factory.mktemp(module)))


def digits() -> tuple[tf.Tensor, np.ndarray]:
    """Returns the images that no trial has trained on, and their classes."""
    images, labels = load_digits(return_X_y=True)
    return tf.constant(images[:HELD_OUT] / 16, tf.float32), labels[:HELD_OUT]


def test_the_experiment_knows_digits_and_tells_its_metrics(trained: Any) -> None:
    experiment = trained("digits_experiment")
    images, labels = digits()
    serve = experiment.signatures["serving_default"]
    [given] = serve.structured_input_signature[1]
    found = serve(**{given: tf.reshape(images, [-1, 8, 8, 1])})["class"].numpy()
    assert np.mean(found == labels) > 0.85
    scalars = last_scalars(str(experiment.run))
    assert {"loss", "accuracy", "eval/loss", "eval/accuracy"} <= scalars.keys()
    log = kept_log(experiment.outputs)
    assert "step = 200" in log
    assert "Saving dict for global step 300: accuracy = " in log


def test_the_keras_trial_knows_digits(trained: Any) -> None:
    keras = trained("digits_keras_trial")
    images, labels = digits()
    [scores] = keras.signatures["serving_default"](image=tf.reshape(images, [-1, 8, 8, 1])).values()
    accuracy = np.mean(scores.numpy().argmax(axis=1) == labels)
    assert accuracy > 0.9
    [trial] = keras.trials
    assert accuracy == pytest.approx(trial["best"], abs=1e-3)
    assert keras.artifact.get_float_custom_property("trials/1/validation/val_accuracy") > 0.9
    assert 0 < keras.artifact.get_float_custom_property("goodput") < 1


def test_the_better_tensorflow_trial_is_published(trained: Any) -> None:
    tensorflow = trained("digits_tensorflow_trial")
    images, labels = digits()
    scores = tensorflow.signatures["serving_default"](image=images)["scores"].numpy()
    assert np.mean(scores.argmax(axis=1) == labels) > 0.9
    trials = tensorflow.trials
    assert [trial["batches"] for trial in trials] == [8 * (1797 - HELD_OUT) // 32] * 2
    best = min(trials, key=lambda trial: trial["best"])
    assert [trial["trial_id"] for trial in trials if trial["exported"]] == [best["trial_id"]]
    assert tensorflow.artifact.get_float_custom_property("trials/1/validation/error") < 0.2


def flowers() -> tuple[list[bytes], np.ndarray]:
    """Returns serialized tf.Examples and the species."""
    names = ("sepal_length", "sepal_width", "petal_length", "petal_width")
    measured, species = load_iris(return_X_y=True)
    records = [example(**dict(zip(names, row, strict=True))) for row in measured.tolist()]
    return records, species


@pytest.mark.slow
def test_the_better_estimator_trial_is_published(trained: Any) -> None:
    estimator = trained("iris_estimator_trial")
    records, species = flowers()
    found = estimator.signatures["predict"](tf.constant(records))["class_ids"].numpy()
    assert np.mean(found[:, 0] == species) > 0.9
    slow, fast = estimator.trials
    assert [slow["batches"], fast["batches"]] == [120, 120]
    assert fast["best"] > slow["best"]
    assert (slow["exported"], fast["exported"]) == (False, True)
    assert [entry["batches"] for entry in fast["history"] if "validation" in entry] == [40, 80, 120]
