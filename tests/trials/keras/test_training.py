"""What a `TFKerasTrial` trains and measures."""

import contextlib
import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer._core.keras import is_keras_3
from generic_trainer.errors import ModuleFileError
from generic_trainer.trials.keras import callbacks
from generic_trainer.trials.keras._controller import TFKerasController
from tests.trials.by_hand import X, config, steps
from tests.trials.keras.one_weight import OneWeight, WithMomentum


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
    periods = {"min_checkpoint_period": {"batches": 3}, "min_validation_period": 4}
    wanted = config(8, "val_loss", scheduling_unit=1, **periods)
    [straight] = run_experiment(Shuffled, wanted, checkpoint_dir=str(tmp_path / "straight"))

    class Killed(Shuffled):
        def keras_callbacks(self):
            def kill(batch, logs):
                if batch == 5:
                    raise KeyboardInterrupt

            return [tf.keras.callbacks.LambdaCallback(on_train_batch_end=kill)]

    with pytest.raises(KeyboardInterrupt):
        run_experiment(Killed, wanted, checkpoint_dir=str(tmp_path / "killed"))
    [resumed] = run_experiment(Shuffled, wanted, checkpoint_dir=str(tmp_path / "killed"))
    assert resumed["history"] == straight["history"]  # also of the batches before it was killed
    wanted["reproducibility"] = {"experiment_seed": 2}
    [other] = run_experiment(Shuffled, wanted, checkpoint_dir=str(tmp_path / "other"))
    assert other["history"] != straight["history"]


@pytest.mark.parametrize(
    ("arguments", "rates"),
    [
        ({"lr": 0.001}, [0.001, 0.003]),
        ({"lr": 0.004, "decay": 1.0}, [0.004, 0.006]),
        ({"decay": 0.0}, [0.01, 0.03]),
    ],
)
def test_old_arguments_of_optimizers_mean_what_they_meant(open_trial, arguments, rates):
    class Old(OneWeight):
        def make_optimizer(self):
            return tf.keras.optimizers.SGD(**arguments)

    trial = open_trial(Old)
    expected = 0.0
    for x, rate in zip((1.0, 2.0), rates, strict=True):
        trial.train(1)
        expected -= rate * 2 * x * (expected * x - 2 * x)
        trial._context.model.optimizer.learning_rate = 3 * rates[0]  # as a callback may
    trained = trial._context.model.get_weights()[0].item()
    assert trained == pytest.approx(expected, rel=1e-5)
    with pytest.raises((TypeError, ValueError)) if is_keras_3() else contextlib.nullcontext():
        tf.keras.optimizers.SGD(lr=0.1)  # outside of trials Keras is left alone


def loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return tf.keras.models.load_model(tmp_path / "model.keras").optimizer


needs_keras_3 = pytest.mark.skipif(not is_keras_3(), reason="no optimizer of Keras 2 can be copied")


@pytest.mark.parametrize(
    "kept",
    [
        loaded,
        pytest.param(lambda model, _: copy.deepcopy(model.optimizer), marks=needs_keras_3),
        pytest.param(
            lambda model, _: pickle.loads(pickle.dumps(model.optimizer)), marks=needs_keras_3
        ),
    ],
)
def test_an_optimizer_with_a_decay_can_be_saved_and_copied(open_trial, tmp_path, kept):
    class Old(OneWeight):
        def make_optimizer(self):
            return tf.keras.optimizers.Adam(lr=0.004, decay=1.0)

    trial = open_trial(Old)
    trial.train(2)
    model = trial._context.model
    optimizer = kept(model, tmp_path)
    rate = tf.keras.optimizers.schedules.deserialize(optimizer.get_config()["learning_rate"])
    assert float(rate(2)) == pytest.approx(0.004 / 3)
    if kept is loaded:  # Keras copies no optimizer with its moments
        moments = [each.variables[-1].numpy().item() for each in (optimizer, model.optimizer)]
        assert int(optimizer.iterations) == 2 and moments[0] == moments[1] > 0


@pytest.mark.skipif(not is_keras_3(), reason="Keras 2 has it")
def test_a_rate_that_keras_3_does_not_read(open_trial):
    class Set(callbacks.Callback):
        def on_train_workload_begin(self, *arguments):
            self.model.optimizer.lr = 1e-3

    with pytest.raises(ModuleFileError, match=r"set optimizer\.learning_rate"):
        open_trial(callbacks=[Set()]).train(1)


def test_the_model_that_was_trained_is_exported(run_experiment, tmp_path):
    class Once(OneWeight):
        def build_model(self):
            (tmp_path / "made").mkdir()
            return super().build_model()

    hparams = {"global_batch_size": 1, "rate": 0.3}
    periods = {"min_validation_period": {"batches": 1}, "scheduling_unit": 1}
    [trial] = run_experiment(Once, config(3, "val_loss", hyperparameters=hparams, **periods))
    assert trial["best_at"] < trial["batches"]
    served = tf.saved_model.load(str(tmp_path / "Format-Serving")).signatures["serving_default"]
    [prediction] = served(inputs=tf.constant(X)).values()
    loss = float(tf.reduce_mean((prediction - 2 * X) ** 2))
    assert loss == pytest.approx(trial["best"], rel=1e-4)


def test_what_makes_a_function_may_return_another():
    class Model:
        train_function = None

        def make_train_function(self):
            self.train_function = "what Keras 2 has made"
            return lambda iterator: "the same, which leaves Keras 2 alone"

    controller = SimpleNamespace(_step_function=None, _model=Model())
    assert TFKerasController._step(controller, None) == "the same, which leaves Keras 2 alone"


def test_one_process_trains_on_whole_batches(open_trial, caplog):
    trial = open_trial(size=3, slots=2, config={"resources": {"slots_per_trial": 2}})
    assert trial.train(1)["loss"] == pytest.approx(56 / 3)
    assert "one for each worker" in caplog.text
