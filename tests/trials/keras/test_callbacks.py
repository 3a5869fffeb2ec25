"""When callbacks are called, with what, and what they can change."""

import pytest
import tensorflow as tf

from generic_trainer._core.event_files import last_scalars
from generic_trainer.trials.errors import CheckFailedError
from generic_trainer.trials.keras import TFKerasTensorBoard, callbacks
from tests.trials.keras.one_weight import OneWeight


class Recorder(callbacks.Callback):
    """Notes each call, with its numbers."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def take(self):
        calls, self.calls = self.calls, []
        return " ".join(calls)


def _noting(hook):
    def note(self, *arguments, **_):
        numbers = [str(argument) for argument in arguments if isinstance(argument, int)]
        self.calls.append(":".join([hook.removeprefix("on_"), *numbers]))

    return note


for _hook in (
    "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end",
    "on_train_batch_begin", "on_train_batch_end", "on_test_begin", "on_test_end",
    "on_test_batch_begin", "on_test_batch_end", "on_train_workload_begin",
    "on_train_workload_end", "on_checkpoint_end",
):  # fmt: skip
    setattr(Recorder, _hook, _noting(_hook))

EPOCHS = {"records_per_epoch": 3}


def test_the_order_of_calls(open_trial, tmp_path):
    seen = Recorder()
    trial = open_trial(callbacks=[seen], config=EPOCHS)
    assert seen.take() == ""
    trial.train(2)
    assert seen.take() == (
        "train_begin train_workload_begin:0:2 "
        "epoch_begin:0 train_batch_begin:0 train_batch_end:0 "
        "train_batch_begin:1 train_batch_end:1 train_workload_end:2"
    )
    trial.train(2)
    assert seen.take() == (
        "train_workload_begin:2:2 train_batch_begin:2 train_batch_end:2 epoch_end:0 "
        "epoch_begin:1 train_batch_begin:0 train_batch_end:0 train_workload_end:4"
    )
    trial.validate()
    batches = "test_batch_begin:{0} test_batch_end:{0}"
    tested = " ".join(batches.format(index) for index in range(3))
    assert seen.take() == f"test_begin {tested} test_end"
    trial.save(str(tmp_path))
    assert seen.take() == "checkpoint_end"
    trial.close()
    assert seen.take() == "train_end"


def test_an_error_is_no_end_of_training(open_trial):
    seen = Recorder()

    def fail(batch, logs):
        raise RuntimeError("boom")

    failing = tf.keras.callbacks.LambdaCallback(on_train_batch_end=fail)
    trial = open_trial(callbacks=[seen, failing], config=EPOCHS)
    with pytest.raises(RuntimeError, match="boom"):
        trial.train(1)
    trial.close()
    assert "train_end" not in seen.take().split()


def test_logs(open_trial):
    seen = {}

    class Logs(callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen["batch"] = logs

        def on_train_workload_end(self, total_batches_trained, logs):
            seen["workload"] = logs

        def on_epoch_end(self, epoch, logs=None):
            seen["epoch"] = logs

        def on_test_end(self, logs=None):
            seen["test"] = logs

    trial = open_trial(callbacks=[Logs()], config=EPOCHS)
    trained = trial.train(3)
    tested = trial.validate()
    assert seen["batch"] == seen["workload"] == trained
    assert all(isinstance(value, float) for value in trained.values())
    assert seen["epoch"] == {}
    assert seen["test"] == tested


def test_validation_metrics_can_be_changed(open_trial):
    class Changing(callbacks.Callback):
        def on_test_end(self, logs=None):
            logs["twice"] = 2 * logs.pop("val_loss")

    found = open_trial(callbacks=[Changing()]).validate()
    assert found == pytest.approx({"val_mae": 4, "twice": 112 / 3})


def test_early_stopping_counts_validations(run_experiment):
    class Stopped(OneWeight):
        def keras_callbacks(self):
            return [callbacks.EarlyStopping(patience=2)]

    length = {"metric": "val_loss", "max_length": {"batches": 100}, "max_trials": 1}
    config = {
        "hyperparameters": {"global_batch_size": 1, "rate": 0.0},
        "searcher": {"name": "async_halving", "num_rungs": 2, "divisor": 10, **length},
        "min_validation_period": {"batches": 5},
    }
    [trial] = run_experiment(Stopped, config)
    # Best at 5, waited at 10, after the checkpoint from which it goes on, and 15.
    assert trial["batches"] == 15


def test_stopping_in_mid_workload_ends_with_it(open_trial):
    class Seen(callbacks.Callback):
        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            if batch == 2:
                self.model.stop_training = True

    seen = Seen()
    trial = open_trial(callbacks=[seen])
    trial.train(5)
    assert seen.batches == 5
    assert trial.stop_requested


def test_the_best_weights_are_restored_when_training_stops(open_trial):
    stopping = callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    trial = open_trial(callbacks=[stopping], hparams={"rate": -0.01})
    best = trial.validate()
    for _ in range(2):
        trial.train(1)
        worse = trial.validate()
    assert worse["val_loss"] > best["val_loss"]
    assert trial.stop_requested
    assert trial.validate()["val_loss"] == best["val_loss"]


def test_larger_may_be_better(open_trial):
    class Accuracy(callbacks.Callback):
        def on_test_end(self, logs=None):
            logs["val_accuracy"] = -logs["val_loss"]

    stopping = callbacks.EarlyStopping("val_accuracy", patience=1, mode="max")
    trial = open_trial(callbacks=[Accuracy(), stopping])
    for _ in range(3):
        trial.validate()
        trial.train(1)
    assert not trial.stop_requested


def test_the_learning_rate_is_lowered_and_reported(open_trial):
    reduce = callbacks.ReduceLROnPlateau(factor=0.5, patience=2, min_delta=0)
    trial = open_trial(callbacks=[reduce], hparams={"rate": 1e-20})
    rates = [trial.validate()["lr"] for _ in range(6)]
    assert rates == pytest.approx([1e-20] * 3 + [0.5e-20] * 2 + [0.25e-20])


def test_a_schedule_of_keras_follows_epochs(open_trial):
    schedule = tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    trial = open_trial(callbacks=[schedule], config=EPOCHS)
    model = schedule.model
    rates = []
    for _ in range(3):
        trial.train(3)
        rates.append(float(model.optimizer.learning_rate.numpy()))
    assert rates == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_event_files_lie_with_the_trial(open_trial, tmp_path):
    class Board(OneWeight):
        def keras_callbacks(self):
            return [TFKerasTensorBoard(log_dir="elsewhere", histogram_freq=1)]

    trial = open_trial(Board, log_dir=str(tmp_path / "logs"))
    for _ in range(2):
        trial.train(2)
        metrics = trial.validate()
    trial.close()
    found = last_scalars(str(tmp_path / "logs"))
    assert found["keras/validation/epoch_loss"] == pytest.approx(metrics["val_loss"])
    assert not (tmp_path / "elsewhere").exists()


def test_a_callback_that_needs_epochs(open_trial, caplog):
    class Ours(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            pass

    class Plain(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            pass

    with pytest.raises(AssertionError, match="without records_per_epoch"):
        open_trial(callbacks=[Ours()])
    open_trial(callbacks=[Plain()])
    assert "Plain overrides on_epoch_end" in caplog.text
    caplog.clear()
    for kind in (callbacks.Callback, tf.keras.callbacks.Callback):
        begun = []
        begin = {"on_epoch_begin": lambda _, epoch, logs, begun=begun: begun.append(epoch)}
        open_trial(callbacks=[type("Beginning", (kind,), begin)()]).train(2)
        assert begun == [0]
        assert "Beginning overrides on_epoch_begin" in caplog.text
        caplog.clear()
    for config in (EPOCHS, {"records_per_epoch": 1}):  # fewer than a batch are an epoch too
        open_trial(size=2, callbacks=[Ours(), Plain(), callbacks.EarlyStopping()], config=config)
    ours = [callbacks.EarlyStopping(), callbacks.ReduceLROnPlateau(), callbacks.TensorBoard()]
    open_trial(callbacks=ours)
    assert "on_epoch" not in caplog.text


@pytest.mark.parametrize("found", [(), ["callback"]])
def test_callbacks_are_a_list(open_trial, found):
    with pytest.raises(CheckFailedError, match="must return a list"):
        open_trial(callbacks=found)
