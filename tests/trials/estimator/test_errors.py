"""What is wrong with a trial is said, with what to do."""

import pytest

from generic_trainer.errors import ExportError, GenericTrainerError, ModuleFileError
from generic_trainer.estimator import tf
from generic_trainer.trials.errors import CheckFailedError
from tests.trials.by_hand import config
from tests.trials.estimator.one_weight import NoPredictions, OneWeight, examples


@pytest.mark.parametrize("what", ["optimizer", "dataset"])
def test_what_was_not_wrapped(open_trial, what):
    class Unwrapped(OneWeight):
        def __init__(self, context):
            super().__init__(context)
            setattr(context, f"wrap_{what}", lambda unwrapped: unwrapped)

    with pytest.raises(CheckFailedError, match=rf"`context\.wrap_{what}\({what}\)` right"):
        open_trial(Unwrapped).train(1)


def test_an_estimator_with_an_optimizer_of_its_own(open_trial):
    class Own(OneWeight):
        def build_estimator(self):
            assert self.context.wrap_optimizer(None) is None
            columns = [tf.feature_column.numeric_column("x")]
            return tf.estimator.LinearRegressor(columns)

    assert open_trial(Own).train(1)["loss"] == pytest.approx(4)


@pytest.mark.parametrize("records", [0, 2])
def test_training_data_that_ends(open_trial, records):
    class Ends(OneWeight):
        def train_data(self):
            data = self.context.wrap_dataset(examples().take(records).batch(1))
            return tf.compat.v1.data.make_one_shot_iterator(data).get_next()

    trial = open_trial(Ends)
    with pytest.raises(ModuleFileError, match=f"ended within 5 batches, of which it had {records}"):
        trial.train(5)


def test_nothing_to_publish(run_experiment):
    with pytest.raises(ExportError, match=r"mode PREDICT.* define build_serving_input"):
        run_experiment(NoPredictions, config(1))


def test_data_that_are_wrapped_and_cached(open_trial, tmp_path):
    class Both(OneWeight):
        def train_data(self):
            cached = self.context.experimental.cache_train_dataset("records", "1")(examples)
            return self.context.wrap_dataset(cached()).batch(1)

    layer = {"type": "shared_fs", "host_storage_path": str(tmp_path)}
    with pytest.raises(CheckFailedError, match=r"Please do not use `context\.wrap_dataset"):
        open_trial(Both, config={"data_layer": layer}).train(1)


@pytest.mark.parametrize(("count", "message"), [(0, "have no batch"), (None, "repeats forever")])
def test_a_validation_has_batches_and_an_end(open_trial, count, message):
    class Repeated(OneWeight):
        def build_validation_spec(self):
            return tf.estimator.EvalSpec(lambda: examples().batch(2).repeat(count), steps=None)

    with pytest.raises(GenericTrainerError, match=message):
        open_trial(Repeated).validate()


def test_validation_data_are_made_for_the_validation_alone(open_trial):
    class Noted(OneWeight):
        calls = 0

        def build_validation_spec(self):
            def input_fn():
                Noted.calls += 1
                return examples().batch(2)

            return tf.estimator.EvalSpec(input_fn, steps=None)

    open_trial(Noted).validate()
    assert Noted.calls == 1
