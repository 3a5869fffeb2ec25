"""The model as the checks see it: parsed, listed and loaded once, each at its first use."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from generic_trainer._core import internals
from generic_trainer._core.machine import resident_memory_mb
from generic_trainer._core.protos import load_eval_config, load_schema, load_statistics, read_schema
from generic_trainer._core.texts import reason_of
from generic_trainer._core.tfx_names import TRANSFORMED_SCHEMA
from generic_trainer.errors import DataError
from generic_trainer.validation._access import Assets
from generic_trainer.validation._ahead import Ahead
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._formats.contents import Contents
from generic_trainer.validation._formats.detected import Artifact, find_artifacts
from generic_trainer.validation._graph import Node, library_of, node_name, walk
from generic_trainer.validation._observed import ObservedFeature, observed_features
from generic_trainer.validation._probing import Budget
from generic_trainer.validation._scoring import Scores
from generic_trainer.validation._variables import Variables

SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt", "saved_model.cpb")
RECORDS = 32  # examples that every signature is called with
EVAL_ROWS = 1000  # examples that are read
MAX_EXAMPLES_BYTES = 64 << 20  # images take long to read, and longer to score
_DEFAULTS = frozenset({"serving_default", "predict"})  # TFMA prefers the latter
_INIT_OP_SIGNATURE = "__saved_model_init_op"


class ModelUnderTest:
    """One SavedModel, examined in a process of its own.

    Args:
        directory: where the files lie for this process; not the place they were exported to.
        contract: what is required.
        exported_to: the directory as the caller knows it.
        unreadable: inputs of the contract that could not be fetched, and why.

    Attributes:
        ahead: what another process finds out.
    """

    ahead: Ahead = Ahead()

    def __init__(
        self,
        directory: Path,
        contract: ServingContract,
        exported_to: str,
        unreadable: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.contract = contract
        self.exported_to = exported_to
        self._unreadable = unreadable or {}
        self.facts: dict[str, Any] = {}
        self.scores: dict[str, Scores] = {}
        self.memory_before_mb: float | None = None

    @functools.cached_property
    def files(self) -> list[Path]:
        """Every file of the model, sorted, relative to `directory`."""
        files = (path for path in self.directory.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.directory) for path in files)

    @functools.cached_property
    def artifacts(self) -> list[Artifact]:
        """The files that are models in other formats."""
        return list(find_artifacts(self.directory, self.files, self.contract.allowed_globals))

    @property
    def readable_artifacts(self) -> list[tuple[Artifact, Contents]]:
        """Those of them that can be read, and what they hold."""
        return [(each, each.contents) for each in self.artifacts if each.contents is not None]

    @property
    def is_saved_model(self) -> bool:
        """Whether the export itself is a SavedModel."""
        return any(Path(name) in self.files for name in SAVED_MODEL_FILES)

    @property
    def is_other_format(self) -> bool:
        """Whether the export is a model in another format, and the contract leaves that open."""
        if self.contract.format is not None or self.is_saved_model:
            return False
        # What lies inside of a SavedModel further down is that one's.
        nested = [path.parent for path in self.files if path.name in SAVED_MODEL_FILES]
        paths = [artifact.path for artifact, _ in self.readable_artifacts]
        return any(not any(map(path.is_relative_to, nested)) for path in paths)

    @functools.cached_property
    def source(self) -> ModelUnderTest | None:
        """The SavedModel whose predictions other formats must have; None where none is known."""
        if self.contract.source_model is not None:
            folder = Path(self.contract.source_model)
            return ModelUnderTest(folder, self.contract, "the source model")
        # Scored, so that it may be run.
        return self if self.scores else None

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
    def signatures(self) -> dict[str, Any]:
        """Name → `SignatureDef` of what the user exported; TensorFlow's own init op left out."""
        declared = self.meta_graph.signature_def
        return {name: declared[name] for name in sorted(declared) if name != _INIT_OP_SIGNATURE}

    @functools.cached_property
    def assets(self) -> list[Any]:
        """Every `AssetFileDef`; TensorFlow 1 kept them in a collection."""
        from tensorflow.core.protobuf import meta_graph_pb2

        collected = self.meta_graph.collection_def["saved_model_assets"].any_list.value
        older = [meta_graph_pb2.AssetFileDef.FromString(packed.value) for packed in collected]
        return [*self.meta_graph.asset_file_def, *older]

    @functools.cached_property
    def asset_nodes(self) -> set[str]:
        """The nodes of the graph that hold the path of an asset."""
        return {node_name(asset.tensor_info.name) for asset in self.assets}

    @functools.cached_property
    def asset_readers(self) -> Assets:
        """Which nodes read assets and nothing else."""
        functions = self.meta_graph.graph_def.library.function
        return Assets(self.nodes, functions, self.asset_nodes)

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """Every node: the graph's own, and those inside each library function."""
        return walk(self.meta_graph)

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
        """Modules that register foreign ops, imported at the first use → why that failed, or ""."""
        wanted = [*self.contract.op_libraries, *filter(None, map(library_of, self.foreign_ops))]
        imported = {}
        for module in dict.fromkeys(wanted) if self.foreign_ops else ():
            try:
                importlib.import_module(module)
                imported[module] = ""
            except Exception as error:
                imported[module] = reason_of(error)
        return imported

    @functools.cached_property
    def variables(self) -> Variables:
        """What reading every variable has shown; raises when there is no readable index."""
        self.memory_before_mb = resident_memory_mb()
        # A graph of TensorFlow 1 has no objects, and is restored by its own ops alone.
        keep = bool(self.meta_graph.object_graph_def.nodes)
        return Variables(self.directory / "variables" / "variables", keep=keep)

    @functools.cached_property
    def eval_rows(self) -> list[bytes]:
        """The first of the contract's examples, or none; a `DataError` if they are unreadable."""
        source = self._input("examples")
        if source is None:
            return []
        from generic_trainer._core.records import read_records  # it imports TensorFlow

        return read_records(source, EVAL_ROWS, most_bytes=MAX_EXAMPLES_BYTES)

    @property
    def records(self) -> list[bytes]:
        """Those examples that every signature is called with."""
        return self.eval_rows[:RECORDS]

    @property
    def label_keys(self) -> set[str]:
        """The labels that the contract names, or that its eval config does."""
        keys = set(self.contract.label_keys)
        if not keys and self.contract.eval_config is not None:
            for spec in self.eval_config.model_specs:
                keys.update([spec.label_key] if spec.label_key else [], spec.label_keys.values())
        return keys

    @functools.cached_property
    def budget(self) -> Budget:
        """The time that all probing together may take."""
        # A row in a batch takes no longer than one alone.
        seconds_per_row = self.facts.get("latency_ms", 0.0) / 1000
        return Budget(self.contract.probe_s, seconds_per_row)

    @functools.cached_property
    def schema(self) -> Any:
        """The contract's `Schema`, or None; a `DataError` if it cannot be read."""
        return load_schema(self._input("schema"))

    @functools.cached_property
    def observed(self) -> dict[str, ObservedFeature]:
        """Name → what the contract's statistics have seen; a `DataError` if they are unreadable.

        Nothing where they are of what Transform has written.
        """
        source = self._input("statistics")
        observed = {} if source is None else observed_features(load_statistics(source))
        if observed and self.transform_graph is not None:
            transformed = read_schema(str(self.transform_graph / TRANSFORMED_SCHEMA))
            if observed.keys() <= {feature.name for feature in transformed.feature}:
                return {}
        return observed

    @functools.cached_property
    def transform_graph(self) -> Path | None:
        """The contract's TransformGraph artifact, or None; a `DataError` if there is no such."""
        source = self._input("transform_graph")
        if source is not None and not Path(source).is_dir():
            raise DataError(f"the transform graph {source} is no directory", path=source)
        return None if source is None else Path(source)

    @functools.cached_property
    def eval_config(self) -> Any:
        """The contract's `EvalConfig`, or None; a `DataError` if it cannot be read."""
        return load_eval_config(self._input("eval_config"))

    def _input(self, name: str) -> Any:
        if name in self._unreadable:
            raise DataError(self._unreadable[name])
        return getattr(self.contract, name)

    @property
    def serving_signatures(self) -> dict[str, Any]:
        """The signatures that consumers use.

        They are those that the contract names, or else what is called where no name is given, and
        those that the eval config names; all where none of these exists. Others may be anything:
        a training step, labels, metadata.
        """
        named = {spec.name for spec in self.contract.signature_specs}
        used = named.intersection(self.signatures) or _DEFAULTS.intersection(self.signatures)
        with contextlib.suppress(DataError):  # of which `inputs_read` tells
            specs = [] if self.eval_config is None else self.eval_config.model_specs
            used = used.union(spec.signature_name for spec in specs)
        return {n: s for n, s in self.signatures.items() if n in used} or self.signatures

    @property
    def served_scores(self) -> dict[str, Scores]:
        """Name → what it returned, of the signatures that consumers use and that were called."""
        return {n: scores for n, scores in self.scores.items() if n in self.serving_signatures}

    @functools.cached_property
    def loaded(self) -> Any:
        """What `tf.saved_model.load` returns."""
        import tensorflow as tf

        variables = self._readable_variables
        with contextlib.nullcontext() if variables is None else variables.lent():
            # There may be a graph for training beside the one that consumers ask for by its tag.
            return tf.saved_model.load(str(self.directory), tags=["serve"])

    @contextlib.contextmanager
    def for_session(self) -> Iterator[str]:
        """Yields a directory from which a session loads the model, in place of the loaded one."""
        self.__dict__.pop("loaded", None)
        gc.collect()  # or what the loader has not been lent is held twice
        variables = self._readable_variables
        if variables is None:
            yield str(self.directory)
        else:
            with variables.lent_to_session(self.directory, self.meta_graph, self.nodes) as folder:
                yield folder
        self.release()

    @property
    def _readable_variables(self) -> Variables | None:
        with contextlib.suppress(Exception):  # of which `variables_read` tells, or the loader
            return self.variables
        return None

    def release(self) -> None:
        """Drops the loaded model and its variables: what comes next loads it in its own way."""
        self.__dict__.pop("loaded", None)
        if "variables" in self.__dict__:
            self.variables.forget()
        gc.collect()
