"""Callbacks with which a killed `fit` of Keras goes on where it was, and the weights they save."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from generic_trainer._core.cluster import is_chief
from generic_trainer._core.files import gfile
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.training.resume._fit import Resume, fitting
from generic_trainer.training.resume._manager import CheckpointManager
from generic_trainer.training.resume._schedule import Frequency
from generic_trainer.training.resume._state import ModelState

_DEFAULT_INTERVAL_S = 60.0

# Directory → the callback of a fit in this process that has begun, and not ended if it raised.
_begun: dict[str, Resume] = {}


@dataclasses.dataclass
class _Run:
    """The fits of the run that was the last to ask for callbacks; a retry has another `fn_args`."""

    fn_args: Any = None
    names: set[str] = dataclasses.field(default_factory=set)

    def names_of(self, fn_args: Any) -> set[str]:
        if fn_args is not self.fn_args:
            self.fn_args, self.names = fn_args, set()
        return self.names


_run = _Run()


def resume_callbacks(
    fn_args: Any,
    *,
    callbacks: Sequence[Any] = (),
    every_steps: int | None = None,
    every_s: float | None = None,
    max_overhead: float | None = 0.01,
    max_to_keep: int = 2,
    wait_s: float = 0.0,
    preemption_grace_s: float = 25.0,
    name: str = "fit",
) -> list[Any]:
    """Returns callbacks with which a killed `model.fit` goes on where it was, in mid-epoch.

    ::

        model.fit(dataset, epochs=10, steps_per_epoch=1000, callbacks=training.resume_callbacks(
            fn_args, callbacks=[keras.callbacks.EarlyStopping("loss")]))

    1. Weights, optimizer, metrics, epoch, batch, history, the state of `callbacks`, the position
       in the data and random state (of layers, TensorFlow, NumPy and Python) are restored, for
       Keras 2 and Keras 3. With the datasets of `fn_args.data_accessor`, also shuffled once more,
       the steps that follow are those of a run without interruption.
    2. What draws with stateful ops of TensorFlow draws anew; the log names it after the first step.
       So does Keras 2's `Dropout`, unless `tf.keras.backend.experimental
       .enable_tf_random_generator()` was called before it was made. Under a distribution strategy,
       whose iterators TensorFlow cannot save, a dataset that is iterated anew in each epoch is
       shuffled in other ways from there on. Where several workers train, NumPy's and Python's
       state is restored in the chief.
       A dataset that is iterated anew, and will be again, is read up to where the epoch was: with
       one that takes long to read, `num_epochs=None` and `steps_per_epoch` resume at once.
    3. By default a checkpoint is written every minute. Training goes on while one is written. What
       it costs training is measured, and where that is more than 1 % of the time until the next
       one is due, the next one is that much later, also with `every_steps`: of steps of 2 ms with a
       checkpoint that costs 10 ms, one a second is written. A kill loses that second more; see
       `max_overhead`. A disk that is full costs a warning, not the run.
    4. SIGTERM writes a checkpoint after the step that is running, then raises `WorkerLostError`.
       With several workers it is enough that one of them is told: all save after the same step.
    5. When `fit` ends, that is saved too: a run that is killed in its evaluation or export does not
       train again. When the model is published, the checkpoints are deleted.
    6. With several workers, all call this; the chief keeps what it saves.

    Args:
        fn_args: the argument of `run_fn`.
        callbacks: your own callbacks; they come first in the returned list. What they hold of
            numbers, texts and arrays is saved and restored.
        every_steps: training steps between two checkpoints, instead of a time; at least so many,
            unless `max_overhead` is None.
        every_s: seconds between two checkpoints; 60 by default.
        max_overhead: the largest share of the time of training that checkpoints may take, as long
            as it goes on. None writes one after exactly every `every_steps`, whatever that costs;
            training then waits for the one before. Those that SIGTERM and the end of `fit` ask for
            are written at once anyway.
        max_to_keep: how many checkpoints to keep.
        wait_s: how long to wait, in seconds, for another run with the same checkpoints to end.
        preemption_grace_s: how long after SIGTERM, in seconds, the running step may take before
            the process exits without a checkpoint.
        name: what to call this `fit`, where `run_fn` has several.

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
    if max_overhead is not None and not 0 < max_overhead <= 1:
        problems.append(
            f"max_overhead: expected a share above 0 and up to 1, or None, found {max_overhead}"
        )
    directory: str = getattr(fn_args, "checkpoint_dir", None) or ""
    if not directory:
        problems.append(
            "fn_args has no checkpoint_dir: expected the argument that GenericTrainer passes to "
            "run_fn, or any object with that attribute"
        )
    names = _run.names_of(fn_args)
    if name in names:
        problems.append(
            f"another fit of this run is called {name!r} already: give each a name of its own, "
            "such as resume_callbacks(fn_args, name='fine_tuning')"
        )
    raise_problems(ConfigurationError, "resume_callbacks", problems)
    names.add(name)
    others = list(callbacks)
    path = os.path.join(directory, name)

    @contextlib.contextmanager
    def open_manager() -> Iterator[CheckpointManager]:
        if path in _begun:  # by an earlier attempt in this process
            _begun[path].close()
        _begun[path] = resume
        try:
            with CheckpointManager(
                path, max_to_keep=max_to_keep, wait_s=wait_s, writes=is_chief()
            ) as manager:
                yield manager
        finally:
            del _begun[path]  # and with it the model

    resume = Resume(
        open_manager,
        others,
        frequency=Frequency(every_steps, every_s or _DEFAULT_INTERVAL_S, max_overhead),
        grace_s=preemption_grace_s,
        name=name,
        run_dir=getattr(fn_args, "model_run_dir", None) or "",
    )
    return [*others, resume]


def restore_weights(model: Any, fn_args: Any, *, name: str = "fit") -> bool:
    """Gives a model the weights that a `fit` with `resume_callbacks` has saved last.

    ::

        def export_fn(fn_args):
            model = build_model()
            training.restore_weights(model, fn_args)
            training.export_model(model, fn_args, label_keys=("tips",))

    With this `export_fn` a rehearsal exports untrained weights before the training, and
    `generic-trainer publish --module-file` exports those of a run whose own export was no good.

    Args:
        model: a Keras model; it is built first if it has no variables yet.
        fn_args: the argument of `export_fn`.
        name: which `fit`, as in `resume_callbacks`.

    Returns:
        False where nothing was saved, as in a rehearsal: the model is as it was.

    Raises:
        TrainingError: what was saved belongs to another model.
    """
    directory = os.path.join(getattr(fn_args, "checkpoint_dir", None) or "", name)
    if not gfile().isdir(directory):
        return False
    with CheckpointManager(directory, writes=False) as manager:
        saved = manager.latest()
    if saved is None:
        return False
    with fitting(saved.path):
        ModelState.read_weights(model, saved.path).assert_existing_objects_matched()
    return True
