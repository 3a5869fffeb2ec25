"""One task of a compiled Kubeflow v2 pipeline, with its inputs filled in."""

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["Artifacts", "Step", "make_step", "runtime_parameters", "upstream"]

Json = Mapping[str, Any]
# Input or output name → `RuntimeArtifact` messages as JSON.
Artifacts = dict[str, list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Step:
    """A task that is ready to run.

    Attributes:
        name: name of the task.
        executor: its `ExecutorSpec`.
        inputs: its input artifacts.
        parameters: parameter name → value, a typed `Value` in schema 2.0 and plain JSON in 2.1.
        typed: whether the values are typed.
        output_types: output name → `ArtifactSpec`.
    """

    name: str
    executor: Json
    inputs: Artifacts
    parameters: dict[str, Any]
    typed: bool
    output_types: Mapping[str, Json]

    def executor_parameters(self) -> Json:
        """Returns the parameters in the field of `ExecutorInput.inputs` that they belong to."""
        return {"parameters" if self.typed else "parameterValues": self.parameters}

    def text(self, value: Json) -> str:
        """Returns what a `ValueOrRuntimeParameter` stands for."""
        if "runtimeParameter" in value:
            found = self.parameters[value["runtimeParameter"]]
            return found["stringValue"] if self.typed else found
        return value["constantValue"]["stringValue"] if self.typed else value["constant"]


def make_step(name: str, spec: Json, given: Json, produced: Mapping[str, Artifacts]) -> Step:
    """Fills in the inputs of a task.

    Args:
        name: name of the task.
        spec: the `PipelineSpec`.
        given: runtime parameter → value, as `runtime_parameters` returns them.
        produced: task name → what it has produced.
    """
    task = spec["root"]["dag"]["tasks"][name]
    assert "triggerPolicy" not in task, "conditions are not implemented"
    component = spec["components"][task["componentRef"]["name"]]
    inputs = task.get("inputs", {})
    sources = {key: source["taskOutputArtifact"] for key, source in _get(inputs, "artifacts")}
    return Step(
        name=name,
        executor=spec["deploymentSpec"]["executors"][component["executorLabel"]],
        inputs={
            key: produced[source["producerTask"]][source["outputArtifactKey"]]
            for key, source in sources.items()
        },
        parameters={key: _value(source, given) for key, source in _get(inputs, "parameters")},
        typed=spec["schemaVersion"].startswith("2.0"),
        output_types=component["outputDefinitions"]["artifacts"],
    )


def runtime_parameters(job: Json) -> Json:
    """Returns the values of the runtime parameters of a `PipelineJob`.

    Raises:
        KeyError: one has no value; neither back end would start the job.
    """
    config = job.get("runtimeConfig", {})
    values = {**config.get("parameters", {}), **config.get("parameterValues", {})}
    declared = job["pipelineSpec"]["root"].get("inputDefinitions", {})
    return {name: values[name] for name, _ in _get(declared, "parameters")}


def upstream(task: Json) -> set[str]:
    """Returns the names of the tasks that a task waits for."""
    sources = [source for _, source in _get(task.get("inputs", {}), "artifacts")]
    producers = {source["taskOutputArtifact"]["producerTask"] for source in sources}
    return producers | set(task.get("dependentTasks", ()))


def _value(source: Json, given: Json) -> Any:
    if "componentInputParameter" in source:
        return given[source["componentInputParameter"]]
    value = source["runtimeValue"]
    return value["constantValue"] if "constantValue" in value else value["constant"]


def _get(definitions: Json, field: str) -> Any:
    return definitions.get(field, {}).items()
