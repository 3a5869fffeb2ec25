"""Callbacks that resume a killed `fit` of Keras, and the weights that they save."""

import contextlib
import functools
import os
import types
from collections.abc import Iterator, Sequence
from typing import Any

from generic_trainer._core.cluster import is_chief
from generic_trainer._core.files import gfile
from generic_trainer._core.keras import is_keras_3
from generic_trainer.errors import ConfigurationError, TrainingError, raise_problems
from generic_trainer.training.resume._fit import Resume
from generic_trainer.training.resume._manager import CheckpointManager, SavedCheckpoint, fitting
from generic_trainer.training.resume._not_finite import ON_NAN
from generic_trainer.training.resume._position import has_ended
from generic_trainer.training.resume._schedule import Schedule
from generic_trainer.training.resume._state import ModelState

# The last `fn_args` for which there were callbacks, and the names of its fits: a retry has another.
_run = types.SimpleNamespace(fn_args=None, names=set())
_exports = types.SimpleNamespace(trained=False)  # whether an export alone is of trained weights


def resume_callbacks(
    fn_args: Any,
    *,
    callbacks: Sequence[Any] = (),
    every_steps: int | None = None,
    every_s: float | None = None,
    max_to_keep: int = 2,
    wait_s: float = 0.0,
    preemption_grace_s: float = 25.0,
    name: str = "fit",
    on_nan: str = "error",
) -> list[Any]:
    """Returns callbacks that resume a killed `model.fit` at the batch of its last checkpoint.

    ::

        model.fit(dataset, epochs=10, steps_per_epoch=1000, callbacks=training.resume_callbacks(
            fn_args, callbacks=[keras.callbacks.EarlyStopping("loss")]))

    1. All variables that training changes are saved and restored: of layers, of every optimizer
       and metric, and every `tf.Variable` that is an attribute of the model or of `callbacks`, also
       in lists, dicts and objects. So are epoch, batch, history, the state of `callbacks`, the
       position in the data, and random state (of layers, TensorFlow, NumPy and Python). With Keras
       2 and Keras 3, the steps that follow are those of a run without interruption.
    2. A resumed `fit` goes through the epochs and batches that are done without computing,
       evaluating or calling other callbacks, in microseconds for each batch. One real step comes
       first: it makes the variables. Of data that are iterated anew in each epoch, it reads a batch
       of each epoch, and the batches of the current one; `num_epochs=None` and `steps_per_epoch`
       resume without reading.
    3. The log names what starts anew in a resumed fit. Variables that only a function holds cannot
       be saved. Stateful ops of TensorFlow draw other numbers; so does Keras 2's `Dropout`, unless
       `tf.keras.backend.experimental.enable_tf_random_generator()` was called before it was made.
       Without a seed, data that are iterated anew in each epoch are shuffled in another order, so
       that in the current epoch some rows come twice and others never.
       Paths in callbacks are those of the new run. A validation that shuffles may take its
       examples in another order, and so may the training, if `take` and `skip` have made the data
       of both from one shuffle. Where several workers train, NumPy's and Python's state is restored
       in the chief. Copies of the callbacks, as KerasTuner makes them, save nothing.
    4. By default a checkpoint is written after 10 s, then ever more rarely, up to once a minute: a
       kill costs 10 s or a quarter of the time since `fit` began. After the first one they are
       further apart if saving would take more than 1 % of the time of training. An explicit
       `every_steps` or `every_s` holds. Training continues while a checkpoint is written. If the
       disk is full, a warning is logged.
    5. SIGTERM writes a checkpoint after the step that is running, then raises `WorkerLostError`.
       With several workers, one that gets it is enough: all save after the same step.
    6. The end of `fit` is saved too: a run that is killed in its evaluation or export does not
       train again. Publishing the model deletes the checkpoints.
    7. With several workers, all call this; only the chief keeps checkpoints.
    8. Weights that are not finite end the attempt before they are saved. The next attempt repeats
       the steps since the last checkpoint, and its error names the batch, the rows, the feature,
       and the first layer whose output is not finite. Several workers or replicas name the step.

    Args:
        fn_args: the argument of `run_fn`.
        callbacks: your own callbacks; they come first in the returned list. Numbers, strings and
            arrays of all callbacks of the `fit` are saved and restored.
        every_steps: training steps between two checkpoints, instead of a time.
        every_s: seconds between two checkpoints. Both save whatever it costs: training then waits
            for the checkpoint before. SIGTERM and the end of `fit` always save at once.
        max_to_keep: how many checkpoints to keep.
        wait_s: how long to wait, in seconds, for another run with the same checkpoints to end.
        preemption_grace_s: how long after SIGTERM, in seconds, the running step may take before
            the process exits without a checkpoint.
        name: a name for this `fit`, if `run_fn` has several.
        on_nan: what to do about weights that are not finite. "error" ends the run and names the
            rows that are to blame; "skip" leaves these rows out; "ignore" does not look.

    Raises:
        ConfigurationError: an argument is wrong, `fn_args` has no `checkpoint_dir`, or another
            `fit` of this run has the same name. While `fit` begins: another run writes there, or
            the strategy is that of parameter servers.
    """
    problems = []
    if every_steps is not None and every_s is not None:
        problems.append("expected every_steps or every_s, found both")
    if every_steps is not None and every_steps < 1:
        problems.append(f"every_steps: expected at least 1, found {every_steps}")
    if every_s is not None and every_s <= 0:
        problems.append(f"every_s: expected more than 0 s, found {every_s}")
    if on_nan not in ON_NAN:
        problems.append(f"on_nan: expected one of {', '.join(ON_NAN)}, found {on_nan!r}")
    directory: str = getattr(fn_args, "checkpoint_dir", None) or ""
    if not directory:
        problems.append(
            "fn_args has no checkpoint_dir: expected the argument that GenericTrainer passes to "
            "run_fn, or any object with that attribute"
        )
    if fn_args is not _run.fn_args:
        _run.fn_args = fn_args
        _run.names = set()
    if name in _run.names:
        problems.append(
            f"another fit of this run is called {name!r} already: give each another name, such as "
            "resume_callbacks(fn_args, name='fine_tuning'); to resume a fit that was interrupted "
            "in this process, make another fn_args"
        )
    raise_problems(ConfigurationError, "resume_callbacks", problems)
    _run.names.add(name)
    resume = Resume(
        os.path.join(directory, name),
        functools.partial(Schedule, every_steps, every_s),
        preemption_grace_s,
        _run_dir(fn_args),
        on_nan,
        max_to_keep=max_to_keep,
        wait_s=wait_s,
    )
    return [*callbacks, resume]


def restore_weights(model: Any, fn_args: Any, *, name: str = "fit") -> bool:
    """Gives a model the weights of the last checkpoint of a `fit` with `resume_callbacks`.

    ::

        def export_fn(fn_args):
            model = build_model()
            training.restore_weights(model, fn_args)
            training.export_model(model, fn_args, label_keys=("tips",))

    With this `export_fn` a rehearsal exports untrained weights before the training, and
    `generic-trainer publish --module-file` exports the weights of a run whose export was bad.
    Layers that were adapted, such as `Normalization` and `StringLookup`, are restored too.

    Args:
        model: a Keras model; it is built first if it has no variables yet.
        fn_args: the argument of `export_fn`.
        name: which `fit`, as in `resume_callbacks`.

    Returns:
        False without a checkpoint, as in a rehearsal: the model is unchanged.

    Raises:
        TrainingError: the checkpoint belongs to another model, or the model cannot be built
            without data: then call it on a batch before. Also if the fit has ended in this run, or
            `generic-trainer publish` calls `export_fn`, and there is no checkpoint of its end: the
            export would be that of an untrained model.
    """
    directory = os.path.join(getattr(fn_args, "checkpoint_dir", None) or "", name)
    saved = _latest(directory)
    # Other workers may be here before the chief has written the last checkpoint.
    is_trained = is_chief() and has_ended(directory, _run_dir(fn_args))
    is_trained = is_trained or (_exports.trained and not _is_left_out(directory))
    if is_trained and not _is_of_end(saved):
        raise TrainingError(
            f"{directory} has no checkpoint of the end of the fit, so its weights cannot be "
            "restored: another run of the same inputs, code and hyperparameters was published and "
            "has deleted it, or the disk was full. Export the model that was trained, or run again."
        )
    if saved is None:
        return False
    with fitting(saved.path):
        ModelState(model).read_weights(saved.path, all_now=True)
        # Keras 2 raises an error of its own for the weights of a model that has not been built.
        if not (is_keras_3(model) or model.built) or not model.weights:
            raise ValueError("the model has no weights yet: call it on a batch before")
    return True


def _is_of_end(saved: SavedCheckpoint | None) -> bool:
    return saved is not None and bool(saved.metadata.get("done"))


def _is_left_out(directory: str) -> bool:
    """Returns whether a run has trained by other fits alone: one of several may be optional."""
    root = os.path.dirname(directory)
    if gfile().isdir(directory) or not gfile().isdir(root):
        return False
    fits = (os.path.join(root, name.rstrip("/")) for name in gfile().listdir(root))
    return any(_is_of_end(_latest(fit)) for fit in fits)


def _latest(directory: str) -> SavedCheckpoint | None:
    if not gfile().isdir(directory):
        return None
    with CheckpointManager(directory, writes=False) as manager:
        return manager.latest()


@contextlib.contextmanager
def exports_trained_weights() -> Iterator[None]:
    """Has `restore_weights` raise an error without a checkpoint of the end of a fit."""
    _exports.trained = True
    try:
        yield
    finally:
        _exports.trained = False


def _run_dir(fn_args: Any) -> str:
    return getattr(fn_args, "model_run_dir", None) or ""
