"""Opens trials outside of an experiment, and closes them."""

from __future__ import annotations

import pytest

from generic_trainer.trials._trial import TrialRun, current
from tests.trials.keras.one_weight import OneWeight


@pytest.fixture
def open_trial():
    opened = []

    def open_(
        trial_class=OneWeight,
        size=1,
        data=None,
        hparams=None,
        config=None,
        callbacks=None,
        **fields,
    ):
        if callbacks is not None:
            members = {
                "__module__": trial_class.__module__,
                "keras_callbacks": lambda _: callbacks,
            }
            trial_class = type("Called", (trial_class,), members)
        run = TrialRun(
            **{
                "trial_id": 1,
                "config": {"data": data or {}, **(config or {})},
                "hparams": {"global_batch_size": size, **(hparams or {})},
                "seed": 3,
                **fields,
            }
        )
        with current(run):
            opened.append(trial_class.open_controller(run))
        return opened[-1]

    yield open_
    for controller in opened:
        controller.close()


@pytest.fixture
def resumed(open_trial, tmp_path):
    """Returns a function: the losses of a run that goes on after it was saved, and of its copy."""

    def both(trial_class, before=7, after=7, **options):
        straight = open_trial(trial_class, **options)
        losses = [straight.train(1)["loss"] for _ in range(before)]
        straight.save(str(tmp_path))
        expected = losses + [straight.train(1)["loss"] for _ in range(after)]
        restored = open_trial(
            trial_class, **options, batches_trained=before, checkpoint_dir=str(tmp_path)
        )
        return expected, losses + [restored.train(1)["loss"] for _ in range(after)]

    return both
