"""What a `TFKerasTrial` trains and measures."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.trials.by_hand import X, steps
from tests.trials.keras.one_weight import OneWeight, WithMomentum


def config(batches=5, size=1, **changes):
    return {
        "hyperparameters": {"global_batch_size": size},
        "searcher": {"metric": "val_loss", "max_length": {"batches": batches}},
        **changes,
    }


def test_losses_are_those_computed_by_hand(run_experiment):
    [trial] = run_experiment(OneWeight, config(5, scheduling_unit=1))
    losses = [entry["training"]["loss"] for entry in trial["history"] if "training" in entry]
    assert losses == pytest.approx([loss for _, loss in steps(5)], rel=1e-5)


def test_training_metrics_are_means_over_the_workload(open_trial):
    trial = open_trial()
    losses = [loss for _, loss in steps(5)]
    assert trial.train(2)["loss"] == pytest.approx(np.mean(losses[:2]), rel=1e-5)
    metrics = trial.train(3)
    assert metrics.keys() == {"loss", "mae"}
    assert metrics["loss"] == pytest.approx(np.mean(losses[2:]), rel=1e-5)


def test_training_drops_a_partial_batch_and_validation_keeps_it(open_trial):
    trial = open_trial(size=2)
    # At w = 0 the records have losses 4, 16, 36; validation weighs each alike.
    assert trial.validate() == pytest.approx({"val_loss": 56 / 3, "val_mae": 4})
    w, losses = 0.0, []
    for _ in range(3):  # always the records 1 and 2
        losses.append(np.mean([(w * x - 2 * x) ** 2 for x in (1, 2)]))
        w -= 0.1 * np.mean([2 * (w * x - 2 * x) * x for x in (1, 2)])
    assert [trial.train(1)["loss"] for _ in range(3)] == pytest.approx(losses, rel=1e-5)


def test_arrays_are_never_shuffled(open_trial):
    class Ordered(OneWeight):
        def build_training_data_loader(self):
            x = np.arange(40.0).reshape(40, 1) / 40
            return x, x

        def make_optimizer(self):
            return tf.keras.optimizers.SGD(0.0)

    trial = open_trial(Ordered, size=2)
    losses = [trial.train(1)["loss"] for _ in range(20)]
    assert losses == sorted(losses)


def test_validation_and_checkpoints_in_between_change_nothing(open_trial, tmp_path):
    interrupted, straight = open_trial(WithMomentum), open_trial(WithMomentum)
    for number in range(4):
        interrupted.validate()
        interrupted.save(str(tmp_path / str(number)))
        assert interrupted.train(1) == straight.train(1)


class Shuffled(OneWeight):
    """Random numbers of every kind: initial weight, data, dropout."""

    def make_model(self):
        return tf.keras.Sequential([tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)])

    def build_training_data_loader(self):
        data = tf.data.Dataset.from_tensor_slices((X, 2 * X)).shuffle(3).batch(1)
        return self.context.wrap_dataset(data)


def test_a_metric_that_is_no_number_is_a_list(open_trial):
    class Confusion(tf.keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="pair")
            self.total = self.add_weight(name="total", shape=(2,), initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign_add([1.0, 2.0])

        def result(self):
            return self.total + 0.0

    class Trial(OneWeight):
        def build_model(self):
            model = self.context.wrap_model(self.make_model())
            model.compile("sgd", "mse", metrics=[Confusion()])

    assert open_trial(Trial).train(3)["pair"] == [3.0, 6.0]


def test_a_killed_experiment_goes_on_and_another_seed_gives_another(run_experiment, tmp_path):
    wanted = config(
        8, scheduling_unit=1, min_checkpoint_period={"batches": 3}, min_validation_period=4
    )
    [straight] = run_experiment(Shuffled, wanted, checkpoint_dir=str(tmp_path / "straight"))

    class Killed(Shuffled):
        def keras_callbacks(self):
            def kill(batch, logs):
                raise KeyboardInterrupt

            stop = tf.keras.callbacks.LambdaCallback()
            stop.on_train_batch_end = lambda batch, logs: kill(batch, logs) if batch == 5 else None
            return [stop]

    with pytest.raises(KeyboardInterrupt):
        run_experiment(Killed, wanted, checkpoint_dir=str(tmp_path / "killed"))
    [resumed] = run_experiment(Shuffled, wanted, checkpoint_dir=str(tmp_path / "killed"))
    assert resumed["history"] == straight["history"]  # also of the batches before it was killed
    wanted["reproducibility"] = {"experiment_seed": 2}
    [other] = run_experiment(Shuffled, wanted, checkpoint_dir=str(tmp_path / "other"))
    assert other["history"] != straight["history"]


def test_a_search_exports_the_best_trial(run_experiment, tmp_path):
    class Searched(OneWeight):
        def make_optimizer(self):
            return tf.keras.optimizers.SGD(self.context.get_hparam("rate"))

    ranges = {"global_batch_size": 1, "rate": {"type": "categorical", "vals": [0.0001, 0.05]}}
    searcher = {"name": "grid", "metric": "val_mae", "max_length": {"batches": 6}}
    slow, fast = run_experiment(Searched, config(hyperparameters=ranges, searcher=searcher))
    assert (slow["exported"], fast["exported"]) == (False, True)
    serve = tf.saved_model.load(str(tmp_path / "Format-Serving")).signatures["serving_default"]
    [[prediction]] = serve(inputs=tf.constant([[1.0]]))["outputs"].numpy()
    # At w, the mean absolute error of the records 1, 2, 3 is 2 |w - 2|.
    assert abs(prediction - 2) * 2 == pytest.approx(fast["best"], rel=1e-3)


def test_epochs_and_records_are_lengths(run_experiment):
    searcher = {"metric": "val_loss", "max_length": {"epochs": 2}}
    [trial] = run_experiment(OneWeight, config(records_per_epoch=3, searcher=searcher))
    assert trial["batches"] == 6
