"""What callbacks change of optimizers and by `compile` goes on, or the resumed fit says why not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generic_trainer import training
from generic_trainer._core.keras import is_keras_3
from generic_trainer.errors import TrainingError
from generic_trainer.training.resume._changes import Changes
from generic_trainer.training.resume._state import set_attributes
from tests.training.resume.fits import Ended, ending, fn_args, ones, values


def fit(
    keras: Any, directory: Path, optimizer: Any, change: Callable[[Any], None], end: int = 0
) -> tuple[Any, Any]:
    """Trains for 3 epochs of 4 steps, and changes the model at the start of the second one."""

    class Changing(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                change(self.model)

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([1]), *layers])
    layers[0].trainable = False
    model.compile(optimizer, "mse", run_eagerly=True)
    callbacks = training.resume_callbacks(fn_args(directory), every_steps=1)
    callbacks += [Changing(), ending(keras, end)]
    history = model.fit(ones(4), epochs=3, verbose=0, callbacks=callbacks).history
    return values(model), history


def optimizers(keras: Any) -> dict[str, Callable[[], Any]]:
    def inner() -> Any:
        return keras.optimizers.SGD(0.01, momentum=0.9, weight_decay=0.01)

    return {
        "plain": inner,
        "of_loss_scale": lambda: keras.mixed_precision.LossScaleOptimizer(inner()),
        "legacy": lambda: keras.optimizers.legacy.SGD(0.01, clipnorm=1.0),
    }


@pytest.mark.parametrize("kind", ["plain", "of_loss_scale", "legacy"])
def test_numbers_of_an_optimizer_that_a_callback_changes_go_on(
    tmp_path: Path, keras: Any, kind: str
) -> None:
    make = optimizers(keras)[kind]
    if kind == "legacy" and is_keras_3(keras.layers.Layer()):
        pytest.skip("Keras 3 has none")

    def change(model: Any) -> None:
        inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        if kind != "legacy":
            inner.momentum, inner.weight_decay = 0.5, None
        inner.clipnorm = 0.125

    def run(name: str, end: int = 0) -> Any:
        return fit(keras, tmp_path / name, make(), change, end)

    straight = run("straight")
    assert straight != fit(keras, tmp_path / "unchanged", make(), lambda model: None)
    for end in (6, 10):
        with pytest.raises(Ended):
            run(f"{end}", end)
        assert run(f"{end}") == straight


def compile_again(model: Any, optimizer: Any, loss: Any) -> None:
    model.compile(optimizer, loss, run_eagerly=True)
    model.make_train_function(force=True)


@pytest.mark.parametrize(
    ("keras", "name"),
    [("keras", "SGD"), ("keras", "Adam"), ("tf_keras", "Adam")],
    indirect=["keras"],
)
def test_a_callback_that_thaws_and_compiles_the_same_goes_on(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    optimizer = getattr(keras.optimizers, name)

    def thaw(model: Any) -> None:
        model.layers[0].trainable = True
        compile_again(model, optimizer(0.001), "mse")

    def run(directory: str, end: int = 0) -> Any:
        return fit(keras, tmp_path / directory, optimizer(0.01), thaw, end)

    straight = run("straight")
    for end in (3, 6, 10):
        with pytest.raises(Ended):
            run(f"{end}", end)
        assert run(f"{end}") == straight
    assert run("straight")[0] == straight[0]  # of the fit that has ended
    assert "it ends with an error" not in caplog.text


def compiles(keras: Any) -> dict[str, Callable[[Any], None]]:
    """Returns name → another loss, or another optimizer."""

    def powered(power: float) -> Any:
        return lambda truth, predicted: (truth - predicted) ** power

    return {
        "loss": lambda model: compile_again(model, model.optimizer, "mae"),
        "function": lambda model: compile_again(model, model.optimizer, powered(4.0)),
        "optimizer": lambda model: compile_again(model, keras.optimizers.Adagrad(0.01), "mse"),
    }


@pytest.mark.parametrize("kind", ["loss", "function", "optimizer"])
def test_a_fit_that_a_callback_compiles_otherwise_is_not_resumed_with_the_first_compile(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    change = compiles(keras)[kind]

    def run(directory: str, end: int = 0) -> Any:
        return fit(keras, tmp_path / directory, keras.optimizers.SGD(0.01), change, end)

    straight = run("straight")
    assert "If this fit is resumed in a later epoch, it ends with an error" in caplog.text
    with pytest.raises(Ended):
        run("later", 10)
    for _ in range(2):
        with pytest.raises(TrainingError, match="a callback had compiled the model"):
            run("later")
    if kind != "loss":
        return
    caplog.clear()
    with pytest.raises(Ended):
        run("before", 3)
    assert "it ends with an error" not in caplog.text
    assert run("before") == straight
    with pytest.raises(Ended):
        run("same_epoch", 6)  # whose start is repeated
    assert run("same_epoch") == straight
    assert run("straight")[0] == straight[0]  # of the fit that has ended
    assert "later evaluations and fits use what run_fn compiles" in caplog.text


def test_a_step_made_anew_that_a_checkpoint_has_no_traces_of_is_noted_once_it_is_traced(
    keras: Any,
) -> None:
    def resumed(saved: dict[str, Any]) -> tuple[Changes, bool]:
        """Returns the changes of a resumed fit, and whether its step anew is traced thawed."""
        layer = keras.layers.Dense(1)
        model = keras.Sequential([keras.Input([1]), layer])
        layer.trainable = False
        model.compile("sgd", "mse")
        changes = Changes(model)
        with changes.traced(saved):
            pass
        with changes.restored(saved, "path", is_done=False):
            set_attributes(model, saved["attributes"])
            changes.step_is_made_anew()
        with changes.traced():
            is_thawed = layer.trainable
        return changes, is_thawed

    layer = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input([1]), layer])
    layer.trainable = False
    model.compile("sgd", "mse")
    changes = Changes(model)
    layer.trainable = True
    changes.step_is_made_anew()
    later, is_thawed = resumed({**changes.values(), "traced": [{}]})
    assert is_thawed
    assert resumed(later.values())[1]
