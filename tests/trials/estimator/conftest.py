"""Opens trials outside of an experiment, and closes them."""

from __future__ import annotations

import pytest

from generic_trainer.trials._trial import TrialRun
from tests.trials.estimator.one_weight import OneWeight


@pytest.fixture
def open_trial():
    opened = []

    def open_(trial_class=OneWeight, data=None, **fields):
        run = {
            "trial_id": 1,
            "config": {"data": data or {}},
            "hparams": {"global_batch_size": 1},
            "seed": 3,
            **fields,
        }
        opened.append(trial_class.open_controller(TrialRun(**run)))
        return opened[-1]

    yield open_
    for controller in opened:
        controller.close()
