"""Training on several devices, which a process has to be started with."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import json, tempfile
    import numpy as np
    import tensorflow as tf

    cpus = tf.config.list_physical_devices("CPU")
    logical = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpus[0], [logical, logical])

    from generic_trainer.trials._trial import TrialRun
    from tests.trials.conftest import make_fn_args
    from tests.trials.by_hand import X
    from tests.trials.keras.one_weight import WithMomentum
    from pathlib import Path

    X5 = np.arange(1.0, 6.0, dtype=np.float32).reshape(5, 1) / 5

    class Arrays(WithMomentum):
        def build_training_data_loader(self):
            return X5, 2 * X5

        def build_validation_data_loader(self):
            return X5, 2 * X5

    class Datasets(Arrays):
        def batches(self, size):
            data = tf.data.Dataset.from_tensor_slices((X5[:4], 2 * X5[:4]))
            return self.context.wrap_dataset(data.batch(size))

        def build_training_data_loader(self):
            return self.batches(self.context.get_per_slot_batch_size())

        def build_validation_data_loader(self):
            data = tf.data.Dataset.from_tensor_slices((X5, 2 * X5))
            return self.context.wrap_dataset(data.batch(self.context.get_per_slot_batch_size()))

    class Normalized(Datasets):
        def build_model(self):
            keras = tf.keras
            layers = [keras.Input([1]), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
            model = self.context.wrap_model(keras.Sequential(layers))
            model.compile("sgd", "mse")
            return model

    def open_trial(trial_class, slots, parallel=False, every=1, **fields):
        resources = {"slots_per_trial": slots, "native_parallel": parallel}
        return trial_class.open_controller(
            TrialRun(
                trial_id=1, hparams={"global_batch_size": 2}, seed=3, slots=slots,
                config={
                    "resources": resources, "optimizations": {"aggregation_frequency": every}
                },
                **fields,
            )
        )

    def losses(trial, count):
        return [trial.train(1)["loss"] for _ in range(count)]

    def saved(trial, trained):
        directory = tempfile.mkdtemp()
        trial.save(directory)
        return {"batches_trained": trained, "checkpoint_dir": directory}

    found = {}
    for kind in (Arrays, Datasets):
        one, two = open_trial(kind, 1), open_trial(kind, 2)
        told, checkpoint = losses(two, 3), saved(two, 3)
        found[kind.__name__] = {
            "one": [*losses(one, 6), one.validate()["val_loss"]],
            "two": [*told, *losses(two, 3), two.validate()["val_loss"]],
            "devices": two._strategy.num_replicas_in_sync,
        }
    second = open_trial(Datasets, 2, **checkpoint)
    found["resumed"] = [*told, *losses(second, 3), second.validate()["val_loss"]]
    with tempfile.TemporaryDirectory() as directory:
        second.export(make_fn_args(Path(directory)))
        model = tf.saved_model.load(directory + "/Format-Serving").signatures["serving_default"]
    found["served"] = model(inputs=tf.constant([[1.0]]))["outputs"].numpy().tolist()
    found["weight"] = float(second._model.get_weights()[0][0, 0])
    found["aggregated 1"] = losses(open_trial(Datasets, 1, every=2), 6)
    aggregated = open_trial(Datasets, 2, every=2)
    found["aggregated 2"] = losses(aggregated, 3)
    aggregated = open_trial(Datasets, 2, every=2, **saved(aggregated, 3))  # within a step
    found["aggregated 2"] += losses(aggregated, 3)
    parallel = open_trial(Datasets, 2, parallel=True)
    found["native parallel"] = [*losses(parallel, 6), parallel.validate()["val_loss"]]
    straight = open_trial(Normalized, 2)
    losses(straight, 3)
    resumed = open_trial(Normalized, 2, **saved(straight, 3))
    found["normalized"] = []
    for trial in (straight, resumed):
        losses(trial, 3)
        found["normalized"].append([each.tolist() for each in trial._model.get_weights()])
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["Arrays", "Datasets"])
def test_two_slots_train_as_one_does_on_the_whole_batch(found, kind):
    assert found[kind]["devices"] == 2
    assert found[kind]["two"] == pytest.approx(found[kind]["one"], rel=1e-4)


def test_with_native_parallel_batches_are_divided(found):
    assert found["native parallel"] == pytest.approx(found["Datasets"]["one"], rel=1e-4)


def test_a_step_may_be_of_several_batches(found):
    assert found["aggregated 2"] == pytest.approx(found["aggregated 1"], rel=1e-4)
    assert found["aggregated 2"][1] != pytest.approx(found["Datasets"]["two"][1], rel=1e-4)


def test_they_go_on_from_a_checkpoint(found):
    assert found["resumed"] == found["Datasets"]["two"]


def test_statistics_of_each_slot_go_on_to_the_last_bit(found):
    straight, resumed = found["normalized"]
    assert resumed == straight


def test_the_export_needs_one_device(found):
    assert found["served"] == [[pytest.approx(found["weight"])]]


def test_too_few_devices_train_on_whole_batches(open_trial, caplog):
    trial = open_trial(size=3, slots=64, config={"resources": {"slots_per_trial": 64}})
    assert trial.train(1)["loss"] == pytest.approx(56 / 3)
    assert "fewer devices" in caplog.text
