"""The model as the checks see it: parsed, listed and loaded once, each at its first use."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib
import re
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer._core import internals
from generic_trainer._core.machine import resident_memory_mb
from generic_trainer._core.texts import reason_of
from generic_trainer.errors import DataError
from generic_trainer.validation._access import is_inside
from generic_trainer.validation._check import Finding, Skip, if_concerned
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._evidence import Evidence
from generic_trainer.validation._graph import (
    HANDS_ON,
    Graph,
    Node,
    Place,
    library_of,
    node_name,
    tensors_of,
)
from generic_trainer.validation._scoring import Feed, Outputs, Scores, call, score
from generic_trainer.validation._session import SessionSignature, open_session
from generic_trainer.validation._signatures import Signature, feature_of
from generic_trainer.validation._tflite import TFLiteModel, find_models
from generic_trainer.validation._troubles import Budget

_CHUNK = 1 << 22  # values that are examined together: one variable may fill the memory
SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt", "saved_model.cpb")
# Of pickles, ONNX, Keras, XGBoost and PyTorch.
OTHER_SUFFIXES = frozenset(
    [".pkl", ".pickle", ".joblib", ".onnx", ".keras", ".h5", ".hdf5", ".bst", ".ubj", ".pt", ".pth"]
)
PREPROCESSING = "transform_"  # TFX's names: transform_features, transform_labels
_DEFAULTS = frozenset({"serving_default", "predict"})  # TFMA prefers the latter
# Ops of whole numbers, of which those that were rounded from floats remain so.
_ROUNDED = HANDS_ON | {
    "Abs", "Add", "AddN", "AddV2", "Cast", "FloorDiv", "Maximum", "Minimum", "Mul", "Neg", "Select",
    "SelectV2", "Sub", "Sum",
}  # fmt: skip
_SHAPES = {"Rank", "Shape", "ShapeN", "Size"}  # of tensors, whose values do not matter
_INIT_OP_SIGNATURE = "__saved_model_init_op"


@dataclasses.dataclass
class Variables:
    """Findings of reading every tensor of a checkpoint.

    Attributes:
        unreadable: name → reason.
        nan: names of float variables with a NaN.
        infinite: names of float variables with an infinity and without NaN.
    """

    unreadable: dict[str, str] = dataclasses.field(default_factory=dict)
    nan: list[str] = dataclasses.field(default_factory=list)
    infinite: list[str] = dataclasses.field(default_factory=list)


def read_variables(prefix: Path) -> Variables:
    """Reads every tensor of a checkpoint; TensorFlow verifies their checksums.

    Raises:
        Exception: the checkpoint has no readable index.
    """
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    variables = Variables()
    for name, dtype in sorted(reader.get_variable_to_dtype_map().items()):
        try:
            value = reader.get_tensor(name)
        except Exception as error:
            variables.unreadable[name] = reason_of(error)
            continue
        if dtype.is_floating or dtype.is_complex:
            flat = np.asarray(value).reshape(-1)
            pieces = [flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK)]
            if odd := [piece for piece in pieces if not np.isfinite(piece).all()]:
                has_nan = any(np.isnan(piece).any() for piece in odd)
                (variables.nan if has_nan else variables.infinite).append(name)
    return variables


@dataclasses.dataclass(eq=False)
class ModelUnderTest:
    """One model, examined in a separate process.

    Attributes:
        directory: of the files in this process; not the directory of the export.
        contract: the requirements.
        exported_to: the directory as the caller knows it.
        unreadable: input of the contract that could not be fetched → reason.
        facts: measurements, for the report.
        scores: name → outputs, of the signatures that were called.
        memory_before_mb: resident memory before the model was loaded for the first time.
        load_error: why `tf.saved_model.load` fails on a model that a session loads; else empty.
    """

    directory: Path
    contract: ServingContract
    exported_to: str
    unreadable: Mapping[str, str] = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    scores: dict[str, Scores] = dataclasses.field(default_factory=dict)
    memory_before_mb: float | None = None
    load_error: str = ""

    @functools.cached_property
    def files(self) -> list[Path]:
        """Every file of the model, sorted, relative to `directory`."""
        files = (path for path in self.directory.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.directory) for path in files)

    @functools.cached_property
    def tflite_models(self) -> list[TFLiteModel]:
        """The TFLite files of the export, readable or not."""
        return list(find_models(self.directory, self.files))

    @property
    def is_saved_model(self) -> bool:
        """Whether the export itself is a SavedModel."""
        return any(Path(name) in self.files for name in SAVED_MODEL_FILES)

    @property
    def other_format(self) -> list[Path]:
        """The files of a model in another format; empty if the export has a SavedModel.

        Only TFLite is read. Others are known by their names, and published unchecked.
        """
        if self.contract.format is not None or self.is_saved_model:
            return []
        tflite = {lite.path for lite in self.tflite_models if not lite.problem}
        paths = [path for path in self.files if path in tflite or path.suffix in OTHER_SUFFIXES]
        # A file inside a SavedModel further down belongs to that one.
        nested = [path.parent for path in self.files if path.name in SAVED_MODEL_FILES]
        return [path for path in paths if not any(map(path.is_relative_to, nested))]

    @functools.cached_property
    def source(self) -> ModelUnderTest | None:
        """The SavedModel whose predictions the model must have; None if none is known."""
        if self.contract.source_model is not None:
            folder = Path(self.contract.source_model)
            return ModelUnderTest(folder, self.contract, "the source model")
        # Scored, so that it may be run.
        return self if self.scores else None

    @functools.cached_property
    def base(self) -> ModelUnderTest | None:
        """The model to compare with, which serves now; None if the contract names none."""
        path = self.contract.base_model
        return None if path is None else ModelUnderTest(Path(path), self.contract, "the base model")

    @functools.cached_property
    def saved_model(self) -> Any:
        """The `SavedModel` proto."""
        return internals.TF_PARSE_SAVED_MODEL.get()(str(self.directory))

    @functools.cached_property
    def meta_graph(self) -> Any:
        """The `MetaGraphDef` tagged exactly `{serve}`."""
        for meta_graph in self.saved_model.meta_graphs:
            if set(meta_graph.meta_info_def.tags) == {"serve"}:
                return meta_graph
        raise LookupError("no MetaGraph is tagged exactly {serve}")

    @functools.cached_property
    def signatures(self) -> dict[str, Signature]:
        """Name → signature, without TensorFlow's own init op."""
        declared = dict(sorted(self.meta_graph.signature_def.items()))
        declared.pop(_INIT_OP_SIGNATURE, None)
        return {name: Signature(proto, self.graph) for name, proto in declared.items()}

    @functools.cached_property
    def assets(self) -> list[Any]:
        """Every `AssetFileDef`; TensorFlow 1 kept them in a collection."""
        from tensorflow.core.protobuf import meta_graph_pb2

        collected = self.meta_graph.collection_def["saved_model_assets"].any_list.value
        older = [meta_graph_pb2.AssetFileDef.FromString(packed.value) for packed in collected]
        return [*self.meta_graph.asset_file_def, *older]

    @property
    def asset_files(self) -> dict[str, Path]:
        """Name → file of every asset, sorted; it may be missing."""
        names = sorted({asset.filename for asset in self.assets})
        return {name: self.directory / "assets" / name for name in names}

    @functools.cached_property
    def asset_nodes(self) -> set[str]:
        """The nodes of the graph that hold the path of an asset, if all are inside the model.

        A session gives them that path only while it initialises. A signature that uses such a node
        itself gets the path that the file had at the export.
        """
        if not all(map(is_inside, self.asset_files)):
            return set()
        used = {place for signature in self.signatures.values() for place in signature.nodes}
        names = {node_name(asset.tensor_info.name) for asset in self.assets}
        return {name for name in names if ("", name) not in used}

    @functools.cached_property
    def graph(self) -> Graph:
        """The graph, with those of its functions."""
        return Graph(self.meta_graph)

    @property
    def nodes(self) -> list[Node]:
        """Every node: the graph's own, and those inside each library function."""
        return self.graph.nodes

    def precision_of(self, signature: Signature) -> dict[str, int]:
        """Returns output → bytes of the smallest floats that it was computed in, if that matters.

        They are 2 for the policy mixed_bfloat16 of Keras, of whatever dtype its outputs are, and 4
        for an output that is cast to float64 or rounded to whole numbers in the end; whole numbers
        that floats only choose, such as keys, are exact. A table that is merely stored in half
        precision does not count.
        """
        import tensorflow as tf

        def computed_in(*dtypes: Any) -> set[Place]:
            kinds = {dtype.as_datatype_enum for dtype in dtypes}
            return {
                node.place
                for node in self.nodes
                if node.op not in HANDS_ON | _SHAPES
                for key in ("T", "DstT")
                if key in node.proto.attr and node.proto.attr[key].type in kinds
            }

        places = {
            2: computed_in(tf.half, tf.bfloat16),
            4: computed_in(tf.float32, tf.complex64),
        }
        rounding = {
            node.place
            for node in self.nodes
            if node.op == "Cast" and tf.as_dtype(node.proto.attr["SrcT"].type).is_floating
        }
        found: dict[str, int] = {}
        for key, output in signature.outputs.items():
            dtype = output.dtype
            is_cast = dtype.is_integer or dtype in (tf.float64, tf.complex128)
            if places[2] or (places[4] and is_cast):
                tensors = tensors_of({key: output.info})
                computing = self.graph.computing(tensors)
                size = next((size for size in (2, 4) if places[size] & computing), 0)
                if size == 4 and dtype.is_integer:
                    size *= bool(rounding & self.graph.computing(tensors, _ROUNDED))
                if size:
                    found[key] = size
        return found

    @functools.cached_property
    def foreign_ops(self) -> dict[str, list[Node]]:
        """Op → its nodes, of the ops that TensorFlow alone does not have."""
        find_op = internals.TF_FIND_OP.get()
        nodes: dict[str, list[Node]] = {}
        for node in self.nodes:
            nodes.setdefault(node.op, []).append(node)
        return {op: its_nodes for op, its_nodes in nodes.items() if find_op(op) is None}

    @functools.cached_property
    def op_libraries(self) -> dict[str, str]:
        """Module that registers foreign ops, imported at the first use → reason of a failure."""
        wanted = [*self.contract.op_libraries, *filter(None, map(library_of, self.foreign_ops))]
        imported = dict.fromkeys(wanted if self.foreign_ops else (), "")
        for module in imported:
            try:
                importlib.import_module(module)
            except Exception as error:
                imported[module] = reason_of(error)
        return imported

    @functools.cached_property
    def variables(self) -> Variables:
        """The findings of reading every variable; raises if the index is not readable."""
        return read_variables(self.directory / "variables" / "variables")

    @functools.cached_property
    def evidence(self) -> Evidence:
        """What the contract's files tell of the rows."""
        return Evidence(self.contract, self.unreadable)

    @functools.cached_property
    def budget(self) -> Budget:
        """The time of all probing together."""
        # A row in a batch takes no longer than one alone.
        seconds_per_row = self.facts.get("latency_ms", 0.0) / 1000
        return Budget(self.contract.probe_s, seconds_per_row)

    @contextlib.contextmanager
    def at_least(self, seconds: float) -> Iterator[Budget]:
        """Has the block probe for so many seconds, even if the budget has fewer left."""
        shared = self.budget
        self.budget = Budget(max(self.budget.left_s, seconds))
        try:
            yield self.budget
        finally:
            shared.left_s = min(shared.left_s, self.budget.left_s)
            self.budget = shared

    @property
    def asked_for(self) -> set[str]:
        """The signatures that the contract names, or else the defaults."""
        named = {spec.name for spec in self.contract.signature_specs}
        return named.intersection(self.signatures) or {*_DEFAULTS}.intersection(self.signatures)

    @property
    def serving_signatures(self) -> dict[str, Signature]:
        """The signatures that consumers use.

        They are the signatures that the contract names, or else the defaults, and those that the
        eval config names; all if none of these exists. Others may be anything: a training step,
        labels, metadata.
        """
        used = self.asked_for
        with contextlib.suppress(DataError):  # which `inputs_read` reports
            config = self.evidence.eval_config
            specs = [] if config is None else config.model_specs
            used = used.union(spec.signature_name for spec in specs)
        return {n: s for n, s in self.signatures.items() if n in used} or self.signatures

    def takes_transformed(self, signature: Signature) -> bool:
        """Whether a signature takes the output of Transform, which the Evaluator reads."""
        if not self.evidence.evaluates_transformed:
            return False
        raw, transformed = self.evidence.feature_dtypes or {}, self.evidence.transformed_dtypes
        read = {*signature.features} or {feature_of(key, transformed) for key in signature.inputs}
        return read <= transformed.keys() and not read <= raw.keys()

    @property
    def served_scores(self) -> dict[str, Scores]:
        """Name → outputs, of the signatures that consumers use and that were called."""
        return {n: scores for n, scores in self.scores.items() if n in self.serving_signatures}

    def score(self, name: str, feed: Feed) -> None:
        """Adds the outputs of a signature to `scores`."""
        self.scores[name] = self._called(name, feed)

    def call(self, name: str, inputs: Mapping[str, Any]) -> Outputs:
        """Calls a signature of the loaded model."""
        return call(self.loaded.signatures[name], inputs)

    def _called(self, name: str, feed: Feed) -> Scores:
        called = self.loaded.signatures[name]
        return score(called, feed, self.precision_of(self.signatures[name]))

    def fresh(self, scores: Mapping[str, Scores]) -> list[tuple[str, Scores]]:
        """Returns name and scores of each, anew where a call of another may have changed weights.

        Signatures that change variables, such as a training step, come last in `scores`.
        """
        changing = {name for name in self.scores if self.signatures[name].assigns}
        return [
            (name, self._called(name, scored.feed) if changing - {name} else scored)
            for name, scored in scores.items()
        ]

    def scored(self, *, served: bool = False) -> dict[str, Scores]:
        """Returns `scores`, or `served_scores`; raises `Skip` if there are none."""
        scores = self.served_scores if served else self.scores
        if not scores:
            served_alone = " of a signature that consumers call" if self.scores else ""
            raise Skip(f"nothing to test: no row{served_alone} was scored, see 'scores'")
        return scores

    @functools.cached_property
    def loaded(self) -> Any:
        """The loaded model; of a TensorFlow 1 graph that only a session loads, its signatures."""
        import tensorflow as tf

        self.op_libraries  # noqa: B018 - imports on first use
        if self.memory_before_mb is None:
            self.memory_before_mb = resident_memory_mb()
        try:
            # A graph for training may exist beside the one that consumers request by its tag.
            return tf.saved_model.load(str(self.directory), tags=["serve"])
        except Exception as error:
            if self.meta_graph.object_graph_def.nodes:
                raise  # it was written for this loader, so that it is damaged
            with contextlib.suppress(Exception):
                running = open_session(str(self.directory))
                called = {n: SessionSignature(running, s) for n, s in self.signatures.items()}
                self.load_error = reason_of(error)
                return types.SimpleNamespace(signatures=called)
            raise

    def changes_state(self, name: str) -> bool:
        """Whether calls of a signature with the same rows go on changing what its outputs read.

        A state that each call begins anew, or that the first fills once and for all, is the same
        after two calls.
        """
        # The graph numbers the second variable of a name: rnn_state_1 is loaded as rnn_state.
        remembered = self.signatures[name].remembered
        names = {*remembered, *(re.sub(r"_\d+$", "", variable) for variable in remembered)}
        states = []
        with contextlib.suppress(Exception):  # such as the end of the state's space
            variables = [
                variable
                for variable in self.loaded.signatures[name].variables
                if variable.name.partition(":")[0] in names
                and variable.dtype.name != "string"
                and (variable.shape.num_elements() or 0) <= _CHUNK
            ]
            for _ in range(2):
                self.call(name, self.scores[name].feed.inputs)
                states.append([variable.numpy().tobytes() for variable in variables])
        return len(states) == 2 and states[0] != states[1]

    def per_row(self, message: str, remedy: str) -> Finding:
        """Fails for consumers that match outputs with examples by row: Evaluator, BulkInferrer."""
        harm = "an Evaluator or a BulkInferrer would fail or go wrong"
        return if_concerned(self.contract.matches_rows, message, harm, remedy)

    def of_rows(self, certain: bool, message: str, remedy: str) -> Finding:
        """Fails if a row's score is wrong for consumers that match rows; warns otherwise."""
        is_wrong = certain and self.contract.matches_rows
        return Finding("fail" if is_wrong else "warn", message, remedy, may_be_meant=True)

    def release(self) -> None:
        """Frees the loaded model, before another loader loads it."""
        self.__dict__.pop("loaded", None)
        gc.collect()
