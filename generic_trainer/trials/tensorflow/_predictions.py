"""Which tensors of a training graph are predictions, and what they are computed from.

`build_graph` returns metrics; predictions may be among them or not, and nothing says which part of
a record is the label. Both can be read off the graph: the label is what joins the computation last,
and a prediction is what the model has computed before it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ExportError

__all__ = ["find_predictions", "inputs_of"]

_LABEL_NAMES = frozenset({"label", "labels", "target", "targets", "y"})
_VARIABLES = frozenset({"VarHandleOp", "VariableV2", "Variable"})


def find_predictions(
    record: Any, components: Mapping[str, tf.Tensor], outputs: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns the predictions of a graph, one value per example each.

    1. What `build_graph` returned, as far as it is per example and does not need the label.
    2. If that is nothing, the tensors that meet the label on their way to the outputs.

    The label is the second component of a record that is a tuple, or the one called "label" or the
    like; otherwise, what meets the model's computation last.

    Args:
        record: what `build_graph` was called with.
        components: name → tensor [N, ...], the record's parts.
        outputs: what `build_graph` returned.

    Raises:
        ExportError: no tensor qualifies.
    """
    flow = _Flow(components, outputs.values())
    labels = _conventional(record, components) or flow.joined_last()
    candidates = dict(outputs)
    if not any(flow.serves(tensor, labels) for tensor in candidates.values()):
        candidates = {_name(tensor): tensor for tensor in flow.before(labels)}
    found = {n: t for n, t in candidates.items() if flow.serves(t, labels)}
    if not found:
        raise ExportError(
            "No prediction was found in the graph: expected a tensor [N, ...] that depends on the "
            f"variables and not on {sorted(labels) or 'a label'}. Return it from build_graph, next "
            "to the loss."
        )
    return found


def inputs_of(tensors: Iterable[tf.Tensor], components: Mapping[str, tf.Tensor]) -> dict[str, Any]:
    """Returns the components that tensors are computed from."""
    tensors = list(tensors)
    flow = _Flow(components, tensors)
    needed = set().union(*(flow.components[tensor.ref()] for tensor in tensors))
    return {name: tensor for name, tensor in components.items() if name in needed}


def _conventional(record: Any, components: Mapping[str, tf.Tensor]) -> set[str]:
    if isinstance(record, Sequence) and len(record) > 1:
        parts = {id(tensor) for part in record[1:] for tensor in tf.nest.flatten(part)}
        return {name for name, tensor in components.items() if id(tensor) in parts}
    return {name for name in components if name.lower() in _LABEL_NAMES}


class _Flow:
    """What each tensor upstream of some results is computed from.

    Attributes:
        components: tensor → names of the record's components.
        learned: tensors that depend on a variable.
    """

    def __init__(self, components: Mapping[str, tf.Tensor], results: Iterable[tf.Tensor]) -> None:
        self._results = list(results)
        self._sources = dict(components)
        self.components = {t.ref(): frozenset({name}) for name, t in components.items()}
        self.learned: set[Any] = set()
        self._order = list(_upstream(self._results, stop=set(self.components)))
        for operation in self._order:
            self._follow(operation)

    def _follow(self, operation: tf.Operation) -> None:
        inputs = [tensor.ref() for tensor in operation.inputs]
        names = frozenset().union(*(self.components.get(i, frozenset()) for i in inputs))
        learned = operation.type in _VARIABLES or any(i in self.learned for i in inputs)
        for tensor in operation.outputs:
            if tensor.ref() in self.components:
                continue
            self.components[tensor.ref()] = names
            if learned:
                self.learned.add(tensor.ref())

    def serves(self, tensor: tf.Tensor, labels: set[str]) -> bool:
        """Whether a tensor is a learned value per example that needs no label."""
        names = self.components.get(tensor.ref(), frozenset())
        return (
            tensor.ref() in self.learned
            and bool(names)
            and not names & labels
            and tensor.shape.rank is not None
            and tensor.shape.rank > 0
            and tensor.shape[0] in self._batch_sizes(names)
        )

    def _batch_sizes(self, names: Iterable[str]) -> set[int | None]:
        return {self._sources[name].shape[0] for name in names}

    def joined_last(self) -> set[str]:
        """Returns the components that meet a learned tensor downstream of all other such places."""
        joined: set[str] = set()
        for operation in self._order:
            here = self._joining(operation)
            if here:
                joined = here
        return joined

    def _joining(self, operation: tf.Operation) -> set[str]:
        inputs = [tensor.ref() for tensor in operation.inputs]
        learned = [self.components.get(i, frozenset()) for i in inputs if i in self.learned]
        plain = [self.components.get(i, frozenset()) for i in inputs if i not in self.learned]
        if not any(learned):
            return set()
        return set(frozenset().union(*plain) - frozenset().union(*learned))

    def before(self, labels: set[str]) -> list[tf.Tensor]:
        """Returns the tensors that no label has reached, consumed by operations that one has."""
        found = {}
        for operation in self._order:
            reached = self.components.get(operation.outputs[0].ref()) if operation.outputs else None
            if reached and reached & labels:
                for tensor in operation.inputs:
                    if self.serves(tensor, labels):
                        found[tensor.ref()] = tensor
        return list(found.values())


def _upstream(results: Iterable[tf.Tensor], stop: set[Any]) -> Iterator[tf.Operation]:
    """Yields the operations that results are computed by, each after those it needs."""
    seen: set[tf.Operation] = set()
    stack = [(tensor.op, False) for tensor in results if tensor.ref() not in stop]
    while stack:
        operation, is_ready = stack.pop()
        if is_ready:
            yield operation
        elif operation not in seen:
            seen.add(operation)
            stack.append((operation, True))
            stack += [(t.op, False) for t in operation.inputs if t.ref() not in stop]


def _name(tensor: tf.Tensor) -> str:
    return tensor.op.name.replace("/", "_")
