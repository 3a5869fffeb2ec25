"""What goes into and comes out of the component, in TFX's own terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tfx import types
from tfx.proto import trainer_pb2
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.system_executions import Train

from generic_trainer._core import tfx_names as keys

__all__ = ["GenericTrainerSpec", "spec_with_extra_inputs"]


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
    }
    INPUTS: ClassVar[Mapping[str, ChannelParameter]] = {
        keys.EXAMPLES: ChannelParameter(type=standard_artifacts.Examples),
        keys.TRANSFORM_GRAPH: ChannelParameter(
            type=standard_artifacts.TransformGraph, optional=True
        ),
        keys.SCHEMA: ChannelParameter(type=standard_artifacts.Schema, optional=True),
        keys.BASE_MODEL: ChannelParameter(type=standard_artifacts.Model, optional=True),
        keys.HYPERPARAMETERS: ChannelParameter(
            type=standard_artifacts.HyperParameters, optional=True
        ),
        keys.STATISTICS: ChannelParameter(type=standard_artifacts.ExampleStatistics, optional=True),
    }
    OUTPUTS: ClassVar[Mapping[str, ChannelParameter]] = {
        keys.MODEL: ChannelParameter(type=standard_artifacts.Model),
        keys.MODEL_RUN: ChannelParameter(type=standard_artifacts.ModelRun),
        keys.INFRA_BLESSING: ChannelParameter(type=standard_artifacts.InfraBlessing),
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
