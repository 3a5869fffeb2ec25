"""Training on several devices, which a process has to be started with."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer.trials.tensorflow._graph import _share

PROGRAM = """
    import json, pathlib, tempfile
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    logical = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [logical, logical])

    from generic_trainer.trials._trial import TrialRun
    from tests.trials.conftest import make_fn_args
    from tests.trials.tensorflow.shared_batches import SharedBatches

    def open_trial(slots, **fields):
        run = TrialRun(trial_id=1, config={}, hparams={}, seed=3, slots=slots, **fields)
        return SharedBatches.open_controller(run)

    def train(trial, count):
        return [trial.train(1) for _ in range(count)]

    found = {}
    for slots in (1, 2):
        trial, directory = open_trial(slots), tempfile.mkdtemp()
        told = {"before": train(trial, 3)}
        trial.save(directory)
        names = [name for name, _ in tf.train.list_variables(directory + "/model.ckpt")]
        told |= {"after": train(trial, 3), "validation": trial.validate(), "variables": names}
        resumed = open_trial(3 - slots, batches_trained=3, checkpoint_dir=directory)
        told["resumed on the other"] = train(resumed, 3)

        fn_args = make_fn_args(pathlib.Path(directory))
        trial.export(fn_args)
        serve = tf.saved_model.load(fn_args.serving_model_dir).signatures["serving_default"]
        (scores,) = serve(x=tf.constant([[1.0], [2.0]])).values()
        told["scores"] = scores.numpy().ravel().tolist()
        found[slots] = told
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    root = Path(__file__).parents[3]
    program = textwrap.dedent(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout.splitlines()[-1]).values()
    return {"one": one, "two": two}


def losses(steps):
    return [step["loss"] for step in steps]


def test_two_devices_compute_what_one_does(found):
    for part in ("before", "after"):
        expected = losses(found["one"][part])
        assert losses(found["two"][part]) == pytest.approx(expected, rel=1e-5)
    assert found["two"]["validation"] == pytest.approx(found["one"]["validation"], rel=1e-5)


def test_each_device_takes_its_share_in_training_and_the_first_all_in_validation(found):
    assert [step["rows"] for step in found["one"]["before"]] == [2, 1, 2]
    assert [step["rows"] for step in found["two"]["before"]] == [1, 1, 1]
    assert found["two"]["validation"]["rows"] == 3
    assert found["two"]["validation"]["counter"] == 6


def test_a_checkpoint_fits_any_number_of_devices(found):
    assert found["two"]["variables"] == found["one"]["variables"]
    for part in ("one", "two"):
        expected = losses(found["one"]["after"])
        assert losses(found[part]["resumed on the other"]) == pytest.approx(expected, rel=1e-5)


def test_the_export_knows_nothing_of_the_devices(found):
    assert found["two"]["scores"] == pytest.approx(found["one"]["scores"], rel=1e-5)


def test_a_slot_gets_its_rows_of_a_sparse_tensor():
    words = tf.sparse.from_dense([[1, 0], [2, 3], [0, 4]])
    record = {"words": words, "label": tf.constant([1.0, 2.0, 3.0])}
    shares = [_share(record, tf.constant(True), index, 2) for index in range(2)]
    assert [tf.sparse.to_dense(one["words"]).numpy().tolist() for one, _, _ in shares] == [
        [[1, 0]],
        [[2, 3], [0, 4]],
    ]
    assert [one["label"].numpy().tolist() for one, _, _ in shares] == [[1], [2, 3]]
