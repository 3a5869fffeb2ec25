"""The files of a checkpoint.

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

from generic_trainer._core.files import gfile

__all__ = ["copy_state", "restore_generators", "write_generators"]

_ALWAYS = ("checkpoint", "graph.pbtxt")
_GENERATORS = "rng_state.pkl"


def copy_state(source: str, target: str) -> None:
    """Copies the newest state of a session from one directory to another."""
    newest = os.path.basename(tf.train.latest_checkpoint(source))
    gfile().makedirs(target)
    for name in gfile().listdir(source):
        if name in _ALWAYS or name.startswith(f"{newest}."):
            gfile().copy(os.path.join(source, name), os.path.join(target, name), overwrite=True)


def write_generators(directory: str) -> None:
    """Writes the state of Python's and NumPy's global random generators."""
    with gfile().GFile(os.path.join(directory, _GENERATORS), "wb") as file:
        file.write(pickle.dumps({"python": random.getstate(), "numpy": np.random.get_state()}))


def restore_generators(directory: str) -> None:
    """Brings the generators to where they were when the checkpoint was written."""
    with gfile().GFile(os.path.join(directory, _GENERATORS), "rb") as file:
        state = pickle.loads(file.read())
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
