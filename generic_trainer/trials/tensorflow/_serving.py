"""The export of a `TensorFlowTrial`: predictions that its graph has, and their inputs.

`build_graph` returns metrics; predictions may be among them or not, and any part of
a record may be the label. Both can be read off the graph: the model applies its weights to
features, and to no label, and a prediction is a tensor that it has computed before a label joins.
"""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import tensorflow as tf

from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import ExportError
from generic_trainer.training.export import export_model, export_on_tensors
from generic_trainer.trials._pipeline import are_features

_DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_LONE_INPUT = "inputs"
_LABEL_NAMES = frozenset({"label", "labels", "target", "targets", "y"})
_SUMS = frozenset({"Add", "AddV2", "Sub"})
# How weights, masks and costs of examples join, which may also be how a label does.
_WEIGHING = (_SUMS - {"Sub"}) | frozenset(
    ["Mul", "RealDiv", "DivNoNan", "Select", "SelectV2", "GatherV2", "DynamicPartition"]
)

_logger = logging.getLogger(__name__)


def export(
    session: Any, predictions: Mapping[str, tf.Tensor], inputs: Mapping[str, Any], fn_args: Any
) -> None:
    """Writes the predictions of a trial's graph as a SavedModel.

    Its signature takes serialized tf.Examples where the pipeline's schema, or Transform's, has all
    features that the predictions need, else a dense tensor per feature: in a sparse one, values
    that are 0 or empty are missing.

    Args:
        session: holds the trained variables.
        predictions: the first result of `find_predictions`.
        inputs: the second one.
        fn_args: the argument of `run_fn`.
    """
    with ScratchFolder("graph-") as scratch:
        directory = os.path.join(scratch, "graph")
        with session.graph.as_default():
            fed = _fed_parts(inputs)
            tf.compat.v1.saved_model.simple_save(session, directory, fed, predictions)
        # Loading it back leaves out all that predictions do not need: data, optimizer, loss.
        model = tf.saved_model.load(directory)
        of_features = _OfFeatures(model, inputs)
        target = fn_args.serving_model_dir
        if are_features(inputs, fn_args):
            export_model(of_features, fn_args, inputs={name: name for name in inputs})
        elif all(isinstance(tensor, tf.Tensor) for tensor in inputs.values()):
            tf.saved_model.save(model, target, signatures=model.signatures)
        else:
            export_on_tensors(of_features, of_features.dense_specs(), target)


def find_predictions(
    record: Any, outputs: Mapping[str, Any]
) -> tuple[dict[str, tf.Tensor], dict[str, Any]]:
    """Returns the predictions of a graph, one value per example each, and their inputs.

    1. What `build_graph` returned, as far as it is per example and needs no label.
    2. If that is nothing, the tensors that meet the label on their way to the outputs.

    Labels are those parts of the record that the loss needs, and that no weight is applied to; of
    several, those after the first part of a tuple, or the one called "label" or the like. Without
    such names it is the one that the graph combines with what all others have reached, or that
    what `build_graph` returned does not need: then a warning says which one that is.

    Args:
        record: the argument of `build_graph`.
        outputs: the result of `build_graph`.

    Raises:
        ExportError: the graph has no prediction, or ragged inputs.
    """
    components = _components(record)
    outputs = {name: output for name, output in outputs.items() if not isinstance(output, tuple)}
    flow = _Flow(components, outputs.values())
    known = _conventional(record, components)
    labels = known & flow.unweighted or flow.unweighted or known
    predictions = flow.returned(outputs, labels)
    label = labels
    # A weight or a mask joins after the label, an offset before.
    if not predictions and not labels <= known and flow.is_chain(labels):
        label = flow.compared_last(labels) or flow.not_needed(outputs.values(), labels)
        if label:
            _logger.warning(
                "The served model needs %s, and %s is taken for the label. If that is wrong, call "
                'the label "label" in the record.',
                sorted(labels - label),
                sorted(label),
            )
            predictions = flow.returned(outputs, label)
    if not predictions:
        predictions = {t.op.name.replace("/", "_"): t for t, _ in flow.meetings(label)}
    if not predictions:
        raise ExportError(
            "No prediction was found in the graph: expected a tensor [N, ...] that depends on the "
            f"variables and not on {sorted(labels) or 'a label'}. Return it from build_graph, next "
            'to the loss; if it needs one of these, call the label "label".'
        )
    needed = frozenset().union(*map(flow.components_of, predictions.values()))
    return predictions, {name: part for name, part in components.items() if name in needed}


def _conventional(record: Any, components: Mapping[str, tf.Tensor]) -> set[str]:
    if isinstance(record, Sequence) and len(record) > 1:
        parts = {id(tensor) for part in record[1:] for tensor in tf.nest.flatten(part)}
        return {name for name, tensor in components.items() if id(tensor) in parts}
    return {name for name in components if name.lower() in _LABEL_NAMES}


class _Flow:
    """What each tensor upstream of some results is computed from: components and variables.

    Attributes:
        unweighted: the names of the record's components that no variable is applied to.
    """

    def __init__(self, components: Mapping[str, tf.Tensor], results: Collection[tf.Tensor]) -> None:
        self._rows = {name: _rows_of(tensor) for name, tensor in components.items()}
        self._components = {
            part.ref(): frozenset({name}) for name, t in components.items() for part in _parts(t)
        }
        self._learned: set[Any] = set()
        self._order = list(_upstream(results, stop=set(self._components)))
        graph = next(iter(results)).graph
        variables = {v.op for v in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)}
        weighted: set[str] = set()
        for operation in self._order:
            inputs = operation.inputs
            names = frozenset().union(*map(self.components_of, inputs))
            made = {tensor.ref() for tensor in operation.outputs} - self._components.keys()
            self._components.update(dict.fromkeys(made, names))
            learned = [tensor for tensor in inputs if tensor.ref() in self._learned]
            if operation in variables or learned:
                self._learned |= made
            if any(self._weighs(tensor, operation, variables) for tensor in learned):
                weighted.update(*(self.components_of(t) for t in inputs if t.shape.rank != 0))
        self.unweighted = set().union(*map(self.components_of, results)) - weighted

    def _weighs(self, tensor: tf.Tensor, operation: Any, variables: Set[Any]) -> bool:
        """Whether a learned tensor is a weight of a model that is applied to the other inputs.

        A loss, also of an example, gets no weights, but penalties and learned scales.
        """
        if self.components_of(tensor):
            return False
        origins = {tensor.op, *(each.op for each in tensor.op.inputs)}
        return tensor.shape.rank != 0 or (
            operation.type not in _SUMS and not origins.isdisjoint(variables)
        )

    def components_of(self, tensor: tf.Tensor) -> frozenset[str]:
        """Returns the names of the record's components that a tensor is computed from."""
        return self._components.get(tensor.ref(), frozenset())

    def serves(self, tensor: tf.Tensor, labels: set[str]) -> bool:
        """Whether a tensor is a learned value per example that needs no label."""
        names = self.components_of(tensor)
        return (
            tensor.ref() in self._learned
            and bool(names)
            and not names & labels
            and bool(tensor.shape.rank)
            and _rows_of(tensor) in {self._rows[name] for name in names}
        )

    def returned(self, outputs: Mapping[str, tf.Tensor], labels: set[str]) -> dict[str, tf.Tensor]:
        """Returns those of the outputs that are predictions."""
        return {name: t for name, t in outputs.items() if self.serves(t, labels)}

    def is_chain(self, labels: set[str]) -> bool:
        """Whether one of the labels joins what another one has reached."""
        met = [tensor for name in labels for tensor, _ in self.meetings({name})]
        return any(self.components_of(tensor) & labels for tensor in met)

    def compared_last(self, labels: set[str]) -> set[str]:
        """Returns the one that joins what all others have reached, and not as weights do."""
        for name in labels:
            meetings = self.meetings({name})
            is_last = all(labels - {name} <= self.components_of(tensor) for tensor, _ in meetings)
            if is_last and any(operation.type not in _WEIGHING for _, operation in meetings):
                return {name}
        return set()

    def not_needed(self, tensors: Iterable[tf.Tensor], labels: set[str]) -> set[str]:
        """Returns those that none of the learned tensors which need the fewest of them needs."""
        lacking = [labels - self.components_of(t) for t in tensors if self.serves(t, set())]
        fewest = [names for names in lacking if len(names) == max(map(len, lacking))]
        return set.intersection(*fewest) if fewest else set()

    def meetings(self, labels: set[str]) -> list[tuple[tf.Tensor, tf.Operation]]:
        """Returns tensors that no label has reached, with operations on them that one has."""
        return [
            (tensor, operation)
            for operation in self._order
            if operation.outputs and self.components_of(operation.outputs[0]) & labels
            for tensor in operation.inputs
            if self.serves(tensor, labels)
        ]


def _rows_of(tensor: Any) -> int | None:
    # With the behaviour of TensorFlow 1, dimensions are not numbers.
    return tf.compat.dimension_value(tensor.shape[0])  # type: ignore[no-any-return]


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


def _components(record: Any, path: tuple[str, ...] = ()) -> dict[str, tf.Tensor]:
    """Returns the parts of a record by name: keys and positions, joined."""
    if isinstance(record, tf.Tensor | tf.SparseTensor):
        return {"_".join(path) or _LONE_INPUT: record}
    if isinstance(record, Mapping):
        parts = [((*path, str(key)), part) for key, part in record.items()]
    elif isinstance(record, (list, tuple)):
        # (features, label): a feature's name is its key, without the position.
        parts = [
            (path if isinstance(part, Mapping) else (*path, f"record_{index}"), part)
            for index, part in enumerate(record)
        ]
    else:
        raise ExportError(
            f"Only records of dense or sparse tensors can be exported, but {'_'.join(path)!r} is "
            f"{record}. Make it sparse in make_data_loaders, with its to_sparse()."
        )
    named = [_components(part, longer_path) for longer_path, part in parts]
    return {name: tensor for tensors in named for name, tensor in tensors.items()}


def _parts(tensor: Any) -> list[tf.Tensor]:
    """Returns a tensor, or indices, values and shape of a sparse one."""
    return tf.nest.flatten(tensor, expand_composites=True)  # type: ignore[no-any-return]


def _fed_parts(inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    return {
        f"{name}/{number}" if number else name: part
        for name, tensor in inputs.items()
        for number, part in enumerate(_parts(tensor))
    }


class _OfFeatures(tf.Module):
    """Predicts from features as a tf.Example has them: flat, and of three types only.

    Those that the graph takes as sparse tensors may be dense as well.
    """

    def __init__(self, model: Any, inputs: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self._specs = {name: tf.type_spec_from_value(like) for name, like in inputs.items()}

    def dense_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the specs of each feature as a dense tensor [N, ...]."""
        specs = {}
        for name, spec in self._specs.items():
            # Sparse features of an Example are of rank 2.
            inner = spec.shape.as_list()[1:] if spec.shape.rank else [None]
            specs[name] = tf.TensorSpec([None, *inner], spec.dtype, name)
        return specs

    def __call__(self, features: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        fed = {}
        for name, spec in self._specs.items():
            feature = tf.cast(features[name], spec.dtype)
            if not isinstance(spec, tf.SparseTensorSpec):
                feature = tf.reshape(feature, [-1, *spec.shape.as_list()[1:]])
            elif isinstance(feature, tf.Tensor):
                feature = tf.sparse.from_dense(feature)
            fed[name] = feature
        return self.model.signatures[_DEFAULT](**_fed_parts(fed))  # type: ignore[no-any-return]
