"""What the last run of a pipeline left in its metadata store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ml_metadata import metadata_store
from ml_metadata.proto import metadata_store_pb2


@dataclass(frozen=True)
class RunResults:
    """Artifacts of one pipeline run, whether made in it or taken from the cache.

    Attributes:
        outputs: MLMD artifacts by output name, such as ``pushed_model``.
        baseline: The blessed model that the Evaluator compared with; None in the first run.
    """

    outputs: dict[str, metadata_store_pb2.Artifact]
    baseline: metadata_store_pb2.Artifact | None

    @property
    def blessed(self) -> bool:
        """Whether the Evaluator blessed the model."""
        return self.property("blessing", "blessed") == 1

    @property
    def pushed_to(self) -> str | None:
        """Folder of the pushed SavedModel; None where nothing was pushed."""
        return self.property("pushed_model", "pushed_destination")

    def uri(self, output: str) -> str:
        """Returns the folder of an output artifact."""
        return self.outputs[output].uri

    def property(self, output: str, name: str) -> Any:
        """Returns a custom property of an output artifact, None where it has no such property."""
        return _properties(self.outputs[output]).get(name)

    def training_metrics(self) -> dict[str, float]:
        """Returns the numbers that GenericTrainer recorded on the Model artifact."""
        properties = _properties(self.outputs["model"])
        return {name: value for name, value in properties.items() if isinstance(value, float)}


def last_run(metadata_path: str) -> RunResults:
    """Reads the newest run from a SQLite metadata store.

    Raises:
        LookupError: The store holds no run.
    """
    connection = metadata_store_pb2.ConnectionConfig()
    connection.sqlite.filename_uri = metadata_path
    connection.sqlite.connection_mode = metadata_store_pb2.SqliteMetadataSourceConfig.READONLY
    store = metadata_store.MetadataStore(connection)
    runs = store.get_contexts_by_type("pipeline_run")
    if not runs:
        raise LookupError(f"Expected a pipeline run in {metadata_path}, found none. Run it first.")
    newest = max(runs, key=lambda run: run.create_time_since_epoch)
    executions = store.get_executions_by_context(newest.id)
    events = store.get_events_by_execution_ids([execution.id for execution in executions])
    event_type = metadata_store_pb2.Event.Type
    outputs = _artifacts(store, events, event_type.Value("OUTPUT"))
    inputs = _artifacts(store, events, event_type.Value("INPUT"))
    return RunResults(outputs, inputs.get("baseline_model"))


def _artifacts(
    store: metadata_store.MetadataStore, events: list[Any], event_type: int
) -> dict[str, metadata_store_pb2.Artifact]:
    # An artifact that is two inputs at once, as the blessed model that is evaluated again, has one
    # event with both names in its path, in any order.
    ids = {
        step.key: event.artifact_id
        for event in events
        if event.type == event_type
        for step in event.path.steps
        if step.HasField("key")
    }
    artifacts = {artifact.id: artifact for artifact in store.get_artifacts_by_id(ids.values())}
    return {name: artifacts[artifact_id] for name, artifact_id in ids.items()}


def _properties(artifact: metadata_store_pb2.Artifact) -> dict[str, Any]:
    properties = artifact.custom_properties
    return {name: getattr(value, value.WhichOneof("value")) for name, value in properties.items()}
