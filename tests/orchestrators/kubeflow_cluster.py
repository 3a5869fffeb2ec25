"""A cluster in a folder: runs a compiled Kubeflow v2 pipeline, one process per container.

Walks the tasks of a `PipelineJob` as the Kubeflow and Vertex back ends do: builds the
`ExecutorInput` of each task, puts it in place of `{{$}}` in the container's command, runs that
command, and takes the artifacts from the `ExecutorOutput` that it writes. Importers and resolvers
run in the back end itself. Each process starts in an empty folder: all that it knows of the
machine that compiled the pipeline is the package and the bucket.

Implements what TFX's compiler emits of `kfp.pipeline_spec.pipeline_spec_pb2`, in both of its forms
(schema 2.0 with typed values, 2.1 with JSON values). There is no cache.
"""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.orchestrators.kubeflow_step import (
    Artifacts,
    Step,
    make_step,
    runtime_parameters,
    upstream,
)

__all__ = ["Cluster", "StepFailed"]

_REPOSITORY = Path(__file__).parents[2]
_EXECUTOR_INPUT = "{{$}}"
_METADATA_PLACEHOLDER = re.compile(r"\{\{\$\.inputs\.artifacts\['(.*)'\]\.metadata\['(.*)'\]\}\}")


class StepFailed(Exception):
    """A container ended with another status than 0; the message is its log."""


@dataclasses.dataclass
class Cluster:
    """Runs jobs and remembers their artifacts.

    Attributes:
        bucket: folder of the outputs.
        store: the artifacts of all jobs, oldest first.
        logs: task name → what its containers wrote in the latest job.
    """

    bucket: Path
    store: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    logs: dict[str, str] = dataclasses.field(default_factory=dict)
    _ids: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def run(self, job: Mapping[str, Any]) -> dict[str, Artifacts]:
        """Runs all tasks of a job.

        Args:
            job: a `PipelineJob` as JSON.

        Returns:
            task name → what it has produced.

        Raises:
            StepFailed: a container failed.
        """
        spec, given = job["pipelineSpec"], runtime_parameters(job)
        graph = {name: upstream(task) for name, task in spec["root"]["dag"]["tasks"].items()}
        produced: dict[str, Artifacts] = {}
        for name in TopologicalSorter(graph).static_order():
            produced[name] = self._run_step(make_step(name, spec, given, produced))
            self.store += itertools.chain(*produced[name].values())
        return produced

    def _run_step(self, step: Step) -> Artifacts:
        if "importer" in step.executor:
            return self._import(step, step.executor["importer"])
        if "resolver" in step.executor:
            queries = step.executor["resolver"]["outputArtifactQueries"]
            return {key: self._newest(query["filter"], step) for key, query in queries.items()}
        return self._run_container(step, step.executor["container"])

    def _import(self, step: Step, importer: Mapping[str, Any]) -> Artifacts:
        (key,) = step.output_types
        uri = step.text(importer["artifactUri"])
        return {key: [self._artifact(uri, importer["typeSchema"], importer.get("metadata", {}))]}

    def _newest(self, query: str, step: Step) -> list[dict[str, Any]]:
        conditions = [_condition(part, step.inputs) for part in query.split(" AND ")]
        found = [artifact for artifact in self.store if all(c(artifact) for c in conditions)]
        return found[-1:]

    def _run_container(self, step: Step, container: Mapping[str, Any]) -> Artifacts:
        task_root = self.bucket / "tasks" / f"{step.name}_{next(self._ids)}"
        executor_input = self._executor_input(step, task_root)
        commands = [container]
        if "lifecycle" in container:  # TFX's ExampleGen resolves its span and version there
            commands.insert(0, container["lifecycle"]["preCacheCheck"])
        self.logs[step.name] = ""
        for command in commands:
            self._run_process(step.name, command, json_format.MessageToJson(executor_input))
        return _outputs(executor_input)

    def _executor_input(self, step: Step, task_root: Path) -> Any:
        inputs = {key: {"artifacts": artifacts} for key, artifacts in step.inputs.items()}
        outputs = {
            key: {"artifacts": [self._artifact(str(task_root / key), kind["artifactType"])]}
            for key, kind in step.output_types.items()
        }
        fields = {
            "inputs": {"artifacts": inputs, **step.executor_parameters()},
            "outputs": {
                "artifacts": outputs,
                "outputFile": str(task_root / "executor_output.json"),
            },
        }
        return json_format.ParseDict(fields, pipeline_spec_pb2.ExecutorInput())

    def _run_process(self, name: str, command: Mapping[str, Any], executor_input: str) -> None:
        words = [*command["command"], *command.get("args", [])]
        words = [executor_input if word == _EXECUTOR_INPUT else word for word in words]
        assert words[0] == "python", words[0]
        empty_folder = self.bucket / "containers" / name
        empty_folder.mkdir(parents=True, exist_ok=True)
        ended = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=empty_folder,
            env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.logs[name] += ended.stdout
        if ended.returncode != 0:
            raise StepFailed(f"{name} ended with {ended.returncode}:\n{ended.stdout}")

    def _artifact(
        self, uri: str, kind: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        name = f"projects/1/locations/here/metadataStores/default/artifacts/{next(self._ids)}"
        return {"name": name, "uri": uri, "type": kind, "metadata": dict(metadata or {})}


def _outputs(executor_input: Any) -> Artifacts:
    """Returns the planned artifacts with what the container's `ExecutorOutput` says of them."""
    text = Path(executor_input.outputs.output_file).read_text(encoding="utf-8")
    written = json_format.Parse(text, pipeline_spec_pb2.ExecutorOutput())
    outputs: Artifacts = {}
    for key, planned in executor_input.outputs.artifacts.items():
        (artifact,) = map(json_format.MessageToDict, planned.artifacts)
        for said in written.artifacts[key].artifacts:
            assert said.name == artifact["name"]
            artifact |= {"uri": said.uri, "metadata": json_format.MessageToDict(said.metadata)}
        outputs[key] = [artifact]
    return outputs


def _condition(text: str, inputs: Artifacts) -> Callable[[Mapping[str, Any]], bool]:
    """Returns the test that a term of a resolver's filter stands for."""
    field, _, value = text.partition("=")
    if field == "state":  # of what failed, nothing is stored
        return lambda artifact: value == "LIVE"
    if field == "schema_title":
        return lambda artifact: _title(artifact) == json.loads(value)
    if field == "name":
        names = _substituted(json.loads(value), inputs)
        return lambda artifact: artifact["name"] in names
    _, key, kind = field.split(".")
    assert kind == "number_value", text
    return lambda artifact: artifact["metadata"].get(key) == float(value)


def _substituted(text: str, inputs: Artifacts) -> list[str]:
    key, field = _METADATA_PLACEHOLDER.fullmatch(text).groups()  # type: ignore[union-attr]
    return [artifact["metadata"][field] for artifact in inputs[key]]


def _title(artifact: Mapping[str, Any]) -> str:
    return yaml.safe_load(artifact["type"]["instanceSchema"])["title"]
