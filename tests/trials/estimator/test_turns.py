"""The thread that trains and its caller take turns."""

import contextvars

import pytest

from generic_trainer.trials.estimator._training import Training

variable = contextvars.ContextVar("variable")


def test_an_error_of_training_reaches_the_caller():
    def train(hook):
        hook.after_create_session(object(), None)
        raise KeyError("lost")

    training = Training(train, on_stop=lambda: None)
    training.start()
    with pytest.raises(KeyError, match="lost"):
        training.run(1)
    with pytest.raises(RuntimeError, match="cannot go on"):
        training.run(1)


def test_closing_ends_training_that_waits_with_the_context_of_its_maker():
    seen = []

    def train(hook):
        seen.append(variable.get())
        hook.after_create_session(object(), None)
        seen.append("over")

    variable.set("here")
    Training(train, on_stop=lambda: None).close()  # before it was started
    assert seen == []
    training = Training(train, on_stop=lambda: None)
    training.start()
    assert seen == ["here"]
    training.close()
    assert seen == ["here", "over"]
