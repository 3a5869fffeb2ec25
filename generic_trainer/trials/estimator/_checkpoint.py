"""The files of an estimator trial's checkpoint, and the hooks that add to them.

::

    checkpoint  graph.pbtxt  model.ckpt-300.{index,meta,data-…}    the session
    <name>/<time>/saved_model.pb                                   an export per receiver function
    rng_state.pkl                                                  Python's and NumPy's generators
    code/                                                          the trial's module
"""

from __future__ import annotations

import os
import pickle
import random

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import gfile, write_whole

_ALWAYS = ("checkpoint", "graph.pbtxt")
_GENERATORS = "rng_state.pkl"


class RunHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A `SessionRunHook` that is also told about checkpoints.

    Only the hooks of the TrainSpec are told::

        class Counter(RunHook):
            def on_checkpoint_load(self, checkpoint_dir):
                self.seen = int((Path(checkpoint_dir) / "seen").read_text())

            def on_checkpoint_end(self, checkpoint_dir):
                (Path(checkpoint_dir) / "seen").write_text(str(self.seen))

    Source: `determined.estimator.RunHook` of Determined 0.13.
    """

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        """Called once, before training starts, where it goes on from a checkpoint."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called when a checkpoint is written; a file that is added here is kept with it."""

    def on_trial_close(self) -> None:
        """Called when the trial is over, also when it failed."""


def copy_state(source: str, target: str) -> None:
    """Copies the newest state of a session from one directory to another."""
    newest = os.path.basename(tf.train.latest_checkpoint(source))
    gfile().makedirs(target)
    for name in gfile().listdir(source):
        if name in _ALWAYS or name.startswith(f"{newest}."):
            gfile().copy(os.path.join(source, name), os.path.join(target, name), overwrite=True)


def write_generators(directory: str) -> None:
    """Writes the state of Python's and NumPy's global random generators."""
    state = {"python": random.getstate(), "numpy": np.random.get_state()}
    write_whole(os.path.join(directory, _GENERATORS), pickle.dumps(state))


def restore_generators(directory: str) -> None:
    """Brings the generators to where they were when the checkpoint was written."""
    with gfile().GFile(os.path.join(directory, _GENERATORS), "rb") as file:
        state = pickle.loads(file.read())
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
