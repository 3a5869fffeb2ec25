"""The smallest pipelines with a GenericTrainer, and what their metadata store says afterwards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2
from tfx import types
from tfx.components import Pusher
from tfx.dsl.components.common.importer import Importer
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.orchestration.metadata import sqlite_metadata_connection_config
from tfx.orchestration.pipeline import Pipeline
from tfx.proto.pusher_pb2 import PushDestination
from tfx.types import standard_artifacts

from generic_trainer import GenericTrainer
from tests import helpers

PLAIN = "def run_fn(fn_args): export(fn_args.serving_model_dir)"

_SPLITS = '["train", "eval"]'


def imported(
    name: str, artifact_type: type[types.Artifact], uri: object, **properties: Any
) -> Importer:
    """Returns a node whose output `result` is an artifact that lies outside of the pipeline."""
    importer = Importer(
        source_uri=str(uri), artifact_type=artifact_type, properties=properties or None
    )
    return importer.with_id(name)


def imported_examples(uri: object) -> Importer:
    """Returns the node `Examples`, with the splits train and eval."""
    return imported("Examples", standard_artifacts.Examples, uri, split_names=_SPLITS)


def with_all_inputs(root: Path, examples: str, **arguments: Any) -> list[Any]:
    """Returns Examples, Statistics, Embeddings → GenericTrainer, as nodes; the trainer is last."""
    helpers.write_statistics(root / "statistics", {"train": 32, "eval": 8})
    kinds = standard_artifacts.ExampleStatistics, standard_artifacts.Examples
    source = imported_examples(examples)
    statistics = imported("Statistics", kinds[0], root / "statistics", split_names=_SPLITS)
    embeddings = imported("Embeddings", kinds[1], root / "embeddings")
    trainer = GenericTrainer(
        examples=source.outputs["result"],
        statistics=statistics.outputs["result"],
        extra_inputs={"embeddings": embeddings.outputs["result"]},
        **arguments,
    )
    return [source, statistics, embeddings, trainer]


def pusher(trainer: GenericTrainer, directory: Path) -> Pusher:
    """Returns a node that copies each model that passed into a numbered folder of `directory`."""
    filesystem = PushDestination.Filesystem(base_directory=str(directory))
    return Pusher(
        model=trainer.outputs["model"],
        infra_blessing=trainer.outputs["infra_blessing"],
        push_destination=PushDestination(filesystem=filesystem),
    )


def of_nodes(root: Path, nodes: Sequence[Any], name: str = "small") -> Pipeline:
    """Returns the pipeline of some nodes, which caches and keeps its metadata below `root`."""
    (root / "metadata").mkdir(parents=True, exist_ok=True)
    return Pipeline(
        pipeline_name=name,
        pipeline_root=str(root / name),
        components=list(nodes),
        enable_cache=True,
        metadata_connection_config=sqlite_metadata_connection_config(
            str(root / "metadata" / "metadata.sqlite")
        ),
    )


def build(
    root: Path, examples: object, *, name: str = "small", **trainer_arguments: Any
) -> Pipeline:
    """Returns the pipeline Examples → GenericTrainer.

    Args:
        root: folder of the artifacts and of the metadata store, which pipelines may share.
        examples: folder with the examples.
        name: name of the pipeline.
        trainer_arguments: further arguments of `GenericTrainer`.
    """
    source = imported_examples(examples)
    trainer = GenericTrainer(examples=source.outputs["result"], **trainer_arguments)
    return of_nodes(root, [source, trainer], name)


def run_local(root: Path, examples: object, **arguments: Any) -> None:
    """Runs `build(root, examples, **arguments)` under LocalDagRunner."""
    LocalDagRunner().run(build(root, examples, **arguments))


class Store:
    """What the metadata store of `of_nodes(root, ...)` says."""

    def __init__(self, root: Path) -> None:
        config = metadata_store_pb2.ConnectionConfig()
        config.sqlite.filename_uri = str(root / "metadata" / "metadata.sqlite")
        self._store = metadata_store.MetadataStore(config)

    def models(self) -> list[metadata_store_pb2.Artifact]:
        """Returns the models that a downstream component can be given, oldest first."""
        return [
            artifact
            for artifact in self._store.get_artifacts_by_type("Model")
            if artifact.state == metadata_store_pb2.Artifact.LIVE
        ]

    def trainer_runs(self) -> list[str]:
        """Returns the last known state of each execution of the trainer, oldest first."""
        trainer_type = "generic_trainer.components.GenericTrainer"
        return [
            metadata_store_pb2.Execution.State.Name(execution.last_known_state)
            for execution in self._store.get_executions_by_type(trainer_type)
        ]
