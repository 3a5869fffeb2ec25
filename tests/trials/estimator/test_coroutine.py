"""A function and its caller take turns."""

from __future__ import annotations

import contextvars

import pytest

from generic_trainer.trials.estimator._training import Coroutine

variable = contextvars.ContextVar("variable")


def test_what_the_function_raises_comes_out():
    def function():
        coroutine.pause()
        raise KeyError("lost")

    coroutine = Coroutine(function)
    coroutine.resume()
    with pytest.raises(KeyError, match="lost"):
        coroutine.resume()


def test_closing_ends_a_function_that_waits():
    def function():
        while not coroutine.closing:
            coroutine.pause()

    coroutine = Coroutine(function)
    coroutine.close()  # before it was started
    coroutine = Coroutine(function)
    coroutine.resume()
    coroutine.close()
    assert coroutine.ended


def test_the_function_knows_the_context_of_its_maker():
    variable.set("here")
    coroutine = Coroutine(lambda: coroutine.pause(variable.get()))
    assert coroutine.resume() == "here"
    coroutine.close()
