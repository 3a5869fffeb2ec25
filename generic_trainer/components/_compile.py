"""Compilation of a step: bundling the user's code, and resources for its workers on Kubeflow.

Both happen whenever a pipeline is compiled: the pipeline root, which every machine that runs the
pipeline can read, is known only then. The bundle's path goes into the execution property
`module_path` in TFX's own form, `module@path`, and its digest into `module_hash`. The inputs of
earlier steps are known as soon as the steps are connected: `raw_examples`.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tfx import types
from tfx.dsl.components.base.executor_spec import ExecutorSpec
from tfx.types import standard_artifacts
from tfx.types.channel import OutputChannel, UnionChannel

from generic_trainer._core import tfx_names as keys
from generic_trainer._core.texts import listed
from generic_trainer._entry_points import may_define
from generic_trainer.launchers import Distribution
from generic_trainer.user_code import bundle_function, bundle_module_file

# Components of TFX whose needs the checks know.
_CONSUMERS = {"BulkInferrer", "Evaluator", "InfraValidator", "Pusher"}
_BUNDLES_DIR = "_bundles"  # beside TFX's `_wheels`
_BYTES_PER_MIB = 1 << 20
_BYTES_PER_GB = 10**9

_logger = logging.getLogger(__name__)


def raw_examples(
    transform_graph: types.BaseChannel | None, others: Iterable[types.BaseChannel | None]
) -> types.BaseChannel | None:
    """Returns the channel of the examples that a transform graph was made from; None if unknown.

    The Evaluator and servers send such raw examples, and a trainer behind Transform would not get
    any. They are unknown for a channel from outside a nested pipeline, or of a resolver. Those in
    a union that is one of the `others` cannot be an input of their own: see `same_inputs`.
    """
    if transform_graph is None or type(transform_graph) is not OutputChannel:
        return None
    inputs = getattr(transform_graph.producer_component, "inputs", {})
    examples: Any = inputs.get(keys.EXAMPLES)
    is_known = type(examples) is OutputChannel and examples.type is standard_artifacts.Examples
    united = [part for c in others if isinstance(c, UnionChannel) for part in c.channels]
    return examples if is_known and examples not in united else None


def same_inputs(inputs: Mapping[str, types.BaseChannel | None]) -> dict[str, str]:
    """Returns each input whose channel an earlier one has, with the name of that one.

    InteractiveContext registers the artifacts of each input with ML Metadata, which accepts an
    artifact once per execution: an input of the same channel is left out of the specification, and
    the executor adds it again.
    """
    names: dict[int, str] = {}
    first = {name: names.setdefault(id(c), name) for name, c in inputs.items() if c is not None}
    return {name: earlier for name, earlier in first.items() if earlier != name}


def warn_of_unknown_consumers(nodes: Iterable[Any], contract: str | None) -> None:
    """Warns of components downstream that the checks will not know for what they are.

    The executor gets the ids of the nodes, and no types. An id has the component's name by default.

    Args:
        nodes: that read the outputs of this one.
        contract: that of the step, as JSON.
    """
    if contract and json.loads(contract).get("consumers"):
        return
    renamed = {}
    for node in nodes:
        kinds = (kind.__name__ for kind in type(node).__mro__ if kind.__name__ in _CONSUMERS)
        kind = next(kinds, None)
        if kind and kind.lower() not in node.id.lower().replace("_", ""):
            renamed[node.id] = kind
    if renamed:
        _logger.warning(
            "The checks know the consumers of a model by the ids of their nodes, and cannot know "
            "%s by its id. What it fails on is only a warning. Begin the id with the name of the "
            "component, as in with_id(%r), or pass contract=ServingContract(consumers=%r).",
            listed([f"the {kind} {name!r}" for name, kind in renamed.items()]),
            "{1}.{0}".format(*next(iter(renamed.items()))),
            (*sorted({*renamed.values()}),),
        )


def bundle_user_code(
    module_file: Any, run_fn: Any, pipeline_root: str | None
) -> dict[str, str | None]:
    """Bundles the user's code and returns the execution properties that point to the bundle.

    Code whose path is known only when the pipeline runs (a runtime parameter), code in the
    environment's installed packages, and code of a pipeline without a root are not bundled.

    Raises:
        ModuleFileError: the module file is missing or cannot be read or parsed.
    """
    unbundled: dict[str, str | None] = {
        keys.MODULE_FILE: module_file,
        keys.RUN_FN: run_fn,
        keys.MODULE_PATH: None,
        keys.MODULE_HASH: None,
    }
    if not isinstance(module_file or run_fn, str):
        return unbundled
    if not pipeline_root:
        _logger.warning(
            "The pipeline has no root, so %s is not bundled: it must exist where the step runs.",
            module_file or run_fn,
        )
        return unbundled
    destination = os.path.join(pipeline_root, _BUNDLES_DIR)
    bundle = bundle_function if run_fn else bundle_module_file
    code = bundle(run_fn or module_file, destination, may_define=may_define)
    if code.bundle is None:
        return unbundled
    return {
        keys.MODULE_FILE: None,
        keys.RUN_FN: run_fn,
        keys.MODULE_PATH: f"{code.module}@{code.bundle}",
        keys.MODULE_HASH: code.digest,
    }


def executor_module(spec: ExecutorSpec | None) -> str | None:
    """Returns the name of the module that defines the executor; None if it is not a class."""
    return getattr(getattr(spec, "executor_class", None), "__module__", None)


def is_of_tfx(spec: ExecutorSpec | None) -> bool:
    """Whether it is an executor of TFX's Trainer; not a class that a user derives from one."""
    # By name: its module takes seconds to import.
    return executor_module(spec) == "tfx.components.trainer.executor"


def step_resources(distribution: Distribution) -> Any:
    """Returns the `ResourceSpec` of a step on Kubeflow or Vertex; None if it does not need any.

    1. A step needs the resources of all workers that run in it, in the process of the executor or
       beside it.
    2. Workers on Ray, in Kubernetes or on Vertex AI run elsewhere, with separate resources.
    3. Requests equal limits; the accelerator's type is `distribution.gpu_type`.
    """
    if not distribution.runs_here:
        return None
    wanted = {
        "cpu": (distribution.cpus_per_worker or 0) * distribution.num_processes,
        "memory": (distribution.memory_mb_per_worker or 0)
        * distribution.num_processes
        * (_BYTES_PER_MIB / _BYTES_PER_GB),
    }
    gpus = int((distribution.gpus_per_worker or 0) * distribution.max_workers)
    if not any(wanted.values()) and not gpus:
        return None
    from kfp.pipeline_spec import pipeline_spec_pb2

    spec = pipeline_spec_pb2.PipelineDeploymentConfig.PipelineContainerSpec.ResourceSpec()
    for name, amount in wanted.items():
        if amount:
            setattr(spec, f"{name}_limit", amount)
            setattr(spec, f"{name}_request", amount)
    if gpus:
        spec.accelerator.type = distribution.gpu_type
        spec.accelerator.count = gpus
    return spec


def with_encode_hook(spec: ExecutorSpec, hook: Callable[[], None]) -> ExecutorSpec:
    """Returns a copy of an executor's specification that calls `hook` when it is encoded.

    TFX's compiler encodes it, and reads a component's `platform_config` afterwards. Only
    KubeflowV2DagRunner builds a step without this compiler, and only it supports the resources of
    `step_resources`: the other runners reject a component that has them.
    """
    kind = type(spec)

    def encode(self: ExecutorSpec, component_spec: Any = None) -> Any:
        hook()
        return kind.encode(self, component_spec)

    hooked: Any = type(kind.__name__, (kind,), {"encode": encode, "__module__": kind.__module__})
    copy = hooked.__new__(hooked)
    vars(copy).update(vars(spec))
    return copy
