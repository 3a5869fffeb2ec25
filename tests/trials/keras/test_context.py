"""What a trial wraps its model, data and optimizers by."""

import pytest
import tensorflow as tf

from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.keras import TFKerasTrialContext
from tests.trials.by_hand import X

CONFIG = {"hyperparameters": {"global_batch_size": 4, "units": 3}}


@pytest.fixture
def context():
    run = TrialRun(trial_id=1, config={}, hparams={"global_batch_size": 4}, seed=0)
    return TFKerasTrialContext(run)


def make_model():
    return tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])


def test_outside_of_an_experiment_all_comes_back_unchanged():
    context = TFKerasTrialContext.from_config(CONFIG)
    model, data, optimizer = make_model(), tf.data.Dataset.range(3), tf.keras.optimizers.SGD()
    kind = type(model)
    assert context.wrap_model(model) is model
    assert type(model) is kind
    assert context.wrap_dataset(data) is data
    assert context.wrap_optimizer(optimizer) is optimizer
    model.compile(optimizer, "mse")
    assert len(model.fit(X, X, verbose=0).history["loss"]) == 1


def test_a_wrapped_model_is_still_a_model(context):
    model = context.wrap_model(make_model())
    assert isinstance(model, tf.keras.Sequential)
    assert context.model is model
    assert model(X).shape == (3, 1)
    model.summary(print_fn=lambda *_, **__: None)
    assert type(model).__name__ == "Sequential"


def test_compile_and_fit_are_noted_and_not_carried_out(context):
    model = context.wrap_model(make_model())
    weights = model.get_weights()
    assert model.compile(tf.keras.optimizers.SGD(), loss="mse") is None
    assert model.fit(X, X, epochs=100, validation_data=(X, X), callbacks=["one"]) is None
    assert all((old == new).all() for old, new in zip(weights, model.get_weights(), strict=True))
    assert context.train_config.training_data[0] is X
    assert context.train_config.validation_data[0] is X
    assert context.train_config.callbacks == ["one"]


def test_fit_starts_what_was_arranged(context):
    seen = []
    context.on_fit = lambda: seen.append(context.train_config.training_data)
    model = context.wrap_model(make_model())
    model.compile("sgd", "mse")
    model.fit_generator("generator", 10, workers=3)
    assert seen == ["generator"]
    assert context.fit_options.workers == 3
    model.fit("data", workers=2, use_multiprocessing=True, max_queue_size=5, shuffle=False)
    assert seen == ["generator", "data"]
    options = context.fit_options
    assert (options.workers, options.use_multiprocessing, options.max_queue_size) == (2, True, 5)


def test_arguments_of_compile_are_those_of_the_model_itself(context):
    class Adversarial(tf.keras.Sequential):
        def compile(self, first, second):
            super().compile()
            self.optimizers = [first, second]

    first, second = (context.wrap_optimizer(tf.keras.optimizers.SGD()) for _ in range(2))
    model = context.wrap_model(Adversarial([tf.keras.layers.Dense(1)]))
    with pytest.raises(TypeError):
        model.compile(third=1)
    model.compile(first, second=second)
    assert context.compile_model() is model
    assert type(model) is Adversarial
    assert list(model.optimizers) == context.optimizers == [first, second]


def test_fit_options_that_are_not_given_stay(context):
    before = dict(vars(context.fit_options))
    context.configure_fit(workers=4)
    context.configure_fit(verbose=False, class_weight={0: 1.0})
    context.configure_fit(verbose=None)
    changed = {"verbose": False, "workers": 4, "class_weight": {0: 1.0}}
    assert vars(context.fit_options) == {**before, **changed}
