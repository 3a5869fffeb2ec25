"""The state of a model in a checkpoint: its variables, its generators, what its layers learned."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from generic_trainer._core.values import unpickled_data
from generic_trainer.training._plain import pickled, read_state, taken_state
from generic_trainer.training.resume._adapted import adapted_state, set_adapted_state
from generic_trainer.training.resume._randomness import random_state, set_random_state
from generic_trainer.training.resume._replicas import OwnOfReplicas
from generic_trainer.training.resume._variables import (
    WEIGHTS,
    Tensors,
    Variables,
    read_variables,
    taken,
    variables_of,
    write_tensors,
)

# Writes values that were taken before into a directory.
Writer: TypeAlias = Callable[[str], None]

# The file of tensors, and the one of all else.
_TENSORS, _VALUES = "tensors", "values"
_MOST_NAMED = 5


class ModelState:
    """What the training of a model changes.

    ::

        state.find_variables()
        write = state.take(tensors, **values)  # a thread may write while training continues
        write(directory)

        state.read_weights(directory)  # in another process, before training makes variables
        state.read()

    Attributes:
        variables: those that `find_variables` has found, by name.
        saved: all values of the checkpoint that `read_weights` has read.
    """

    variables: Variables
    saved: dict[str, Any]

    def __init__(self, model: Any, others: Sequence[Any] = ()) -> None:
        """Takes a model of Keras, and other objects whose variables its training changes."""
        self._model, self._others = model, others

    def find_variables(self) -> None:
        """Finds the variables, before the first `take` and whenever some may have been made."""
        self.variables = variables_of(self._model, self._others)

    def take(self, tensors: Tensors, **values: Any) -> Writer:
        """Returns a writer of the present state; all workers of a cluster call this.

        Args:
            tensors: others to write, by names without a slash.
            values: other plain data to write.
        """
        tensors = {**taken(self.variables), **tensors}
        own = OwnOfReplicas(self._model.distribute_strategy, self.variables.values())
        values |= {"learned": self._learned, "replicas": own.values()}
        write_values = taken_state(_VALUES, {**values, "random": random_state(self._model)})

        def write(directory: str) -> None:
            write_tensors(tensors_in(directory), tensors)
            write_values(directory)

        return write

    def read_weights(self, directory: str) -> None:
        """Restores the variables that a model is made of; builds it first if it has not been.

        Raises:
            ValueError: the model has variables that the checkpoint has not.
        """
        self._path, self.saved = tensors_in(directory), read_state(directory, _VALUES)
        self._adapted, build_config = unpickled_data(self.saved["learned"])
        if not self._model.built and build_config:
            self._model.build_from_config(build_config)
        self.find_variables()
        names = filter(lambda name: name.startswith(WEIGHTS), self.variables)
        if missing := self._read_variables({name: self.variables[name] for name in names})[0]:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")

    def read(self) -> None:
        """Restores the state, when all variables have been made.

        Raises:
            ValueError: the model has other variables than were saved.
        """
        self.find_variables()
        missing, others = self._read_variables(self.variables)
        differing = sorted(missing | {name for name in others if "/" in name})
        if differing:
            raise ValueError(
                f"only one of them has {', '.join(differing[:_MOST_NAMED])} (a variable that a "
                "validation makes, for example, has to be made before fit)"
            )
        set_random_state(self._model, self.saved["random"])

    def _read_variables(self, variables: Variables) -> tuple[set[str], set[str]]:
        names = read_variables(self._path, variables)
        own = OwnOfReplicas(self._model.distribute_strategy, variables.values())
        own.assign(self.saved["replicas"])
        set_adapted_state(self._model, self._adapted)
        return names

    @functools.cached_property
    def _learned(self) -> bytes:
        """What no step changes, so that it is pickled once."""
        return pickled((adapted_state(self._model), self._model.get_build_config()))


def tensors_in(directory: str) -> str:
    """Returns the common start of the paths of the tensors in a checkpoint."""
    return os.path.join(directory, _TENSORS)
