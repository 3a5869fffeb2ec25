"""Training on several devices, which a process has to be started with."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import json, sys, tempfile
    import tensorflow

    cpus = tensorflow.config.list_physical_devices("CPU")
    logical = tensorflow.config.LogicalDeviceConfiguration()
    tensorflow.config.set_logical_device_configuration(cpus[0], [logical, logical])

    from generic_trainer.trials._trial import TrialRun
    from tests.trials.estimator.one_weight import WithMomentum

    def open_trial(slots, **fields):
        fields["hparams"] = {"global_batch_size": 2}
        run = TrialRun(trial_id=1, config={}, seed=3, slots=slots, **fields)
        return WithMomentum.open_controller(run)

    def losses(trial, count):
        return [trial.train(1)["loss"] for _ in range(count)]

    straight, directory = open_trial(2), tempfile.mkdtemp()
    told = losses(straight, 3)
    straight.save(directory)
    found = {"two": [*told, *losses(straight, 3)], "validated": straight.validate()}
    resumed = open_trial(2, batches_trained=3, checkpoint_dir=directory)
    found["resumed"] = [*told, *losses(resumed, 3)]
    for trial in (straight, resumed):
        trial.close()
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
    return json.loads(done.stdout.splitlines()[-1])


def by_hand(count):
    """Momentum on the mean of two slots, each with one of the records 1, 2, 3, 1, 2, 3, ..."""
    w, speed, losses = 0.0, 0.0, []
    for step in range(count):
        records = [(2 * step + slot) % 3 + 1 for slot in (0, 1)]
        errors = [(w - 2) * x for x in records]
        losses.append(sum(error**2 for error in errors) / 2)
        gradient = sum(2 * error * x for error, x in zip(errors, records, strict=True)) / 2
        speed = 0.5 * speed + gradient
        w -= 0.1 * speed
    return losses, w


def test_each_slot_takes_its_share(found):
    losses, w = by_hand(6)
    assert found["two"] == pytest.approx(losses, rel=1e-4)
    assert found["validated"]["error"] == pytest.approx(abs(w - 2) * 2, rel=1e-4)


def test_a_restored_trial_goes_on_as_the_straight_one(found):
    assert found["resumed"] == found["two"]
