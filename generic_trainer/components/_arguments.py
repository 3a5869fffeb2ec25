"""Arguments of the component: their specification for TFX, and all checks of them at once."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from google.protobuf import json_format
from tfx import types
from tfx.dsl.components.base.executor_spec import ExecutorSpec
from tfx.dsl.placeholder.placeholder import Placeholder
from tfx.orchestration.data_types import RuntimeParameter
from tfx.proto import trainer_pb2
from tfx.types import standard_artifacts as artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.system_executions import Train
from tfx.utils import json_utils, proto_utils

from generic_trainer._core import tfx_names as keys
from generic_trainer._core.texts import describe
from generic_trainer.components._compile import executor_module
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.launchers import Distribution
from generic_trainer.tracking import parse_trackings
from generic_trainer.validation import ServingContract, lint_eval_config

# Values that are known only when the pipeline runs.
PER_RUN_VALUES = (RuntimeParameter, Placeholder)
_CLASSES = {
    "custom_executor_spec": ExecutorSpec,
    "contract": ServingContract,
    "distribution": Distribution,
    "sign_with": str,
}
_AI_PLATFORM_EXECUTOR = "tfx.extensions.google_cloud_ai_platform.trainer.executor"
_STEPS_ARGS = {keys.TRAIN_ARGS: trainer_pb2.TrainArgs, keys.EVAL_ARGS: trainer_pb2.EvalArgs}


class GenericTrainerSpec(ComponentSpec):
    """The specification of TFX's Trainer, with statistics and a hash of the user's code."""

    PARAMETERS: ClassVar[Mapping[str, ExecutionParameter]] = {
        keys.TRAIN_ARGS: ExecutionParameter(type=trainer_pb2.TrainArgs),
        keys.EVAL_ARGS: ExecutionParameter(type=trainer_pb2.EvalArgs),
        keys.MODULE_FILE: ExecutionParameter(type=str, optional=True),
        keys.MODULE_PATH: ExecutionParameter(type=str, optional=True),
        keys.MODULE_HASH: ExecutionParameter(type=str, optional=True),
        keys.RUN_FN: ExecutionParameter(type=str, optional=True),
        keys.CUSTOM_CONFIG: ExecutionParameter(type=str, optional=True),
        keys.CONTRACT: ExecutionParameter(type=str, optional=True),
        keys.EVAL_CONFIG: ExecutionParameter(type=str, optional=True),
        keys.DISTRIBUTION: ExecutionParameter(type=str, optional=True),
        keys.TRACKING: ExecutionParameter(type=str, optional=True),
        keys.SIGN_WITH: ExecutionParameter(type=str, optional=True),
        keys.SAME_INPUTS: ExecutionParameter(type=str, optional=True),
    }
    INPUTS: ClassVar[Mapping[str, ChannelParameter]] = {
        keys.EXAMPLES: ChannelParameter(type=artifacts.Examples),
        keys.TRANSFORM_GRAPH: ChannelParameter(type=artifacts.TransformGraph, optional=True),
        keys.SCHEMA: ChannelParameter(type=artifacts.Schema, optional=True),
        keys.BASE_MODEL: ChannelParameter(type=artifacts.Model, optional=True),
        keys.HYPERPARAMETERS: ChannelParameter(type=artifacts.HyperParameters, optional=True),
        keys.STATISTICS: ChannelParameter(type=artifacts.ExampleStatistics, optional=True),
        keys.RAW_EXAMPLES: ChannelParameter(type=artifacts.Examples, optional=True),
    }
    OUTPUTS: ClassVar[Mapping[str, ChannelParameter]] = {
        keys.MODEL: ChannelParameter(type=artifacts.Model),
        keys.MODEL_RUN: ChannelParameter(type=artifacts.ModelRun),
        keys.INFRA_BLESSING: ChannelParameter(type=artifacts.InfraBlessing),
    }
    TYPE_ANNOTATION = Train


def spec_with_extra_inputs(
    extra_inputs: Mapping[str, types.BaseChannel],
) -> type[GenericTrainerSpec]:
    """Returns a specification whose inputs include one per extra input, of its channel's type."""
    if not extra_inputs:
        return GenericTrainerSpec
    extra_parameters = {
        keys.EXTRA_INPUT_PREFIX + name: ChannelParameter(type=channel.type, optional=True)
        for name, channel in extra_inputs.items()
    }
    inputs = {**GenericTrainerSpec.INPUTS, **extra_parameters}
    return type(GenericTrainerSpec.__name__, (GenericTrainerSpec,), {"INPUTS": inputs})


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises one error that lists everything that is wrong with the component's arguments.

    Args:
        arguments: argument name → value, as given to `GenericTrainer`.

    Raises:
        ConfigurationError: at least one argument is wrong.
    """
    problems = [
        *_examples(arguments),
        *_user_code(arguments),
        *_channels(arguments),
        *_extra_inputs(arguments),
        *_steps(arguments),
        *_custom_config(arguments),
        *_classes(arguments),
        *_tracking(arguments),
        *_eval_config(arguments),
    ]
    raise_problems(ConfigurationError, "GenericTrainer got wrong arguments", problems)


def _examples(arguments: Mapping[str, Any]) -> Iterator[str]:
    examples = arguments["examples"]
    transformed = arguments["transformed_examples"]
    if (examples is None) == (transformed is None):
        given = "neither" if examples is None else "both"
        yield f"give exactly one of `examples` and `transformed_examples` (old), not {given}."
    if transformed is not None and arguments["transform_graph"] is None:
        yield "`transformed_examples` needs `transform_graph` beside it."


def _user_code(arguments: Mapping[str, Any]) -> Iterator[str]:
    module_file = arguments["module_file"]
    run_fn = arguments["run_fn"]
    if bool(module_file) == bool(run_fn):
        given = "both" if module_file else "neither"
        yield (
            "give exactly one of `module_file` (path of a .py file) and `run_fn` "
            f'("package.module.function"), not {given}.'
        )
    for name in ("module_file", "run_fn"):
        value = arguments[name]
        if value and not isinstance(value, (str, *PER_RUN_VALUES)):
            yield f"`{name}` must be a string or a RuntimeParameter, but got {describe(value)}."
    if isinstance(run_fn, str) and run_fn and "." not in run_fn:
        yield f'`run_fn` must be the import path "package.module.function", but got {run_fn!r}.'


def _channels(arguments: Mapping[str, Any]) -> Iterator[str]:
    inputs = GenericTrainerSpec.INPUTS
    for name, parameter in {**inputs, "transformed_examples": inputs[keys.EXAMPLES]}.items():
        value = arguments.get(name)
        if value is None:
            continue
        expected = f"`{name}` must be a channel of {parameter.type.TYPE_NAME} artifacts"
        if not isinstance(value, types.BaseChannel):
            yield f'{expected}, such as `component.outputs["{name}"]`, but got {describe(value)}.'
            continue
        try:
            parameter.type_check(name, value)
        except TypeError:
            yield f"{expected}, but its artifacts are of type {value.type.TYPE_NAME}."


def _extra_inputs(arguments: Mapping[str, Any]) -> Iterator[str]:
    extra_inputs = arguments["extra_inputs"] or {}
    if not isinstance(extra_inputs, Mapping):
        yield f"`extra_inputs` must be a dict of name → channel, but got {describe(extra_inputs)}."
        return
    for name, channel in extra_inputs.items():
        if not (isinstance(name, str) and name.isidentifier()):
            yield f"the names in `extra_inputs` must be Python identifiers, but one is {name!r}."
        if not isinstance(channel, types.BaseChannel):
            yield f"`extra_inputs[{name!r}]` must be a channel, but got {describe(channel)}."


def _steps(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, proto_class in _STEPS_ARGS.items():
        value = arguments[name]
        if value is None or isinstance(value, PER_RUN_VALUES):
            continue
        try:
            num_steps = _as_proto(value, proto_class()).num_steps
        except (TypeError, ValueError, RecursionError, json_format.ParseError) as error:
            yield f"`{name}` must be a tfx.proto.{proto_class.__name__}: {error}"
            continue
        if num_steps < 0:
            yield f"`{name}.num_steps` must be 0 (no limit) or more, but got {num_steps}."


def _as_proto(value: Any, proto: Any) -> Any:
    if isinstance(value, type(proto)):
        return value
    if isinstance(value, dict):
        known = {key: item for key, item in value.items() if not isinstance(item, PER_RUN_VALUES)}
        return proto_utils.dict_to_proto(known, proto)
    if isinstance(value, str):
        return proto_utils.json_to_proto(value, proto)
    raise TypeError(f"got {describe(value)}.")


def _custom_config(arguments: Mapping[str, Any]) -> Iterator[str]:
    value = arguments["custom_config"]
    if value is not None and not isinstance(value, (dict, *PER_RUN_VALUES)):
        yield f"`custom_config` must be a dict or a RuntimeParameter, but got {describe(value)}."
    if not isinstance(value, dict):
        return
    try:
        json_utils.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        yield f"`custom_config` must be JSON-serialisable: {error}."


def _classes(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, kind in _CLASSES.items():
        value = arguments[name]
        if value is not None and not isinstance(value, kind):
            article = "an" if kind.__name__[0] in "AEIOU" else "a"
            yield f"`{name}` must be {article} {kind.__name__}, but got {describe(value)}."
    if executor_module(arguments["custom_executor_spec"]) == _AI_PLATFORM_EXECUTOR:
        yield (
            "`custom_executor_spec` names TFX's executor for AI Platform Training, a service that "
            "no longer exists: use generic_trainer.vertex.Trainer, which trains on Vertex AI, or "
            "omit it to train in the pipeline's own step."
        )


def _tracking(arguments: Mapping[str, Any]) -> Iterator[str]:
    try:
        parse_trackings(arguments["tracking"])
    except ConfigurationError as error:
        yield f"`tracking`: {error}"


def _eval_config(arguments: Mapping[str, Any]) -> Iterator[str]:
    value = arguments["eval_config"]
    if value is None:
        return
    # By name, because importing TensorFlow Model Analysis takes seconds.
    if getattr(getattr(value, "DESCRIPTOR", None), "name", None) != "EvalConfig":
        yield f"`eval_config` must be a tfma.EvalConfig, but got {describe(value)}."
        return
    if "eval_config" in getattr(arguments["contract"], "severities", {}):  # to skip, or to warn
        return
    result = lint_eval_config(value)
    if result.status == "fail":
        yield f"`eval_config` would make the Evaluator fail: {result.message} → {result.remedy}"
