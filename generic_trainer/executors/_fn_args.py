"""The argument of `run_fn`: TFX's `FnArgs`, and what GenericTrainer adds to them."""

import copy
import os
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import attr

from generic_trainer._core.lazy import is_installed, needing_tfx
from generic_trainer._core.tfx_names import EVAL_MODEL_DIR, SERVING_MODEL_DIR
from generic_trainer.data import SplitCounts, make_dataset_factory
from generic_trainer.launchers import ExamplesFormat, TrainingRequest

HAS_TFX = is_installed("tfx")
if HAS_TFX:
    from tfx.components.trainer.fn_args_utils import DataAccessor
    from tfx.components.trainer.fn_args_utils import FnArgs as FnArgsOfTfx
else:  # the same fields
    DataAccessor = namedtuple(
        "DataAccessor", "tf_dataset_factory record_batch_factory data_view_decode_fn"
    )
    _FIELDS = (
        "working_dir train_files eval_files train_steps eval_steps schema_path schema_file "
        "transform_graph_path transform_output data_accessor serving_model_dir eval_model_dir "
        "model_run_dir base_model hyperparameters custom_config"
    )
    FnArgsOfTfx = attr.make_class("FnArgs", {key: attr.ib(default=None) for key in _FIELDS.split()})

_TELEMETRY = ["GenericTrainer"]


class FnArgs(FnArgsOfTfx):
    """TFX's `FnArgs`, with three attributes of GenericTrainer.

    Modules hand all fields on, with `FnArgs(**attr.asdict(fn_args, recurse=False))` or
    `Step(**vars(fn_args))`: the additions are neither fields of attrs nor in `vars()`.

    Attributes:
        num_examples: split name → number of examples, from the statistics artifact where one was
            given, else counted when it is looked at.
        extra_inputs: input name → URIs of its artifacts.
        checkpoint_dir: directory for checkpoints, which the next attempt at the same run finds
            again; deleted when the model is published.
    """

    __slots__ = ("checkpoint_dir", "extra_inputs", "num_examples")

    def __init__(
        self,
        *,
        num_examples: Mapping[str, int] | None = None,
        extra_inputs: dict[str, list[str]] | None = None,
        checkpoint_dir: str | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(**fields)
        self.num_examples = num_examples
        self.extra_inputs = extra_inputs or {}
        self.checkpoint_dir = checkpoint_dir


def make_fn_args(request: TrainingRequest, export_dir: str) -> FnArgs:
    """Builds what `run_fn` is called with.

    Args:
        request: the run.
        export_dir: directory that the model directories of this worker go into.
    """
    return FnArgs(
        train_files=list(request.train_files),
        eval_files=list(request.eval_files),
        train_steps=request.train_steps,
        eval_steps=request.eval_steps,
        schema_path=request.schema_path,
        schema_file=request.schema_path,
        transform_graph_path=request.transform_graph_path,
        transform_output=request.transform_graph_path,
        data_accessor=_data_accessor(request.examples_format, request.seed),
        serving_model_dir=os.path.join(export_dir, SERVING_MODEL_DIR),
        eval_model_dir=os.path.join(export_dir, EVAL_MODEL_DIR),
        model_run_dir=request.model_run_dir,
        base_model=request.base_model,
        # `run_fn` may change its arguments, and the request must not change with them.
        hyperparameters=copy.deepcopy(request.hyperparameters),
        custom_config=copy.deepcopy(request.custom_config),
        num_examples=copy.copy(request.num_examples) or SplitCounts(request.split_files),
        extra_inputs={name: list(uris) for name, uris in request.extra_inputs.items()},
        checkpoint_dir=request.checkpoint_dir,
    )


def _data_accessor(examples_format: ExamplesFormat, seed: int | None) -> DataAccessor:
    if examples_format.is_tf_example and not HAS_TFX:
        return DataAccessor(make_dataset_factory(seed=seed), None, None)
    with needing_tfx("An Examples artifact of another format than tf.Examples"):
        from tfx.components.util import examples_utils, tfxio_utils
    examples = [_like_original(examples_format)]
    return DataAccessor(
        tf_dataset_factory=make_dataset_factory(
            tfxio_utils.get_tf_dataset_factory_from_artifact(examples, _TELEMETRY),
            payload_format=examples_utils.get_payload_format_string(examples[0]),
            seed=seed,
        ),
        record_batch_factory=tfxio_utils.get_record_batch_factory_from_artifact(
            examples, _TELEMETRY
        ),
        data_view_decode_fn=tfxio_utils.get_data_view_decode_fn_from_artifact(examples, _TELEMETRY),
    )


def _like_original(examples_format: ExamplesFormat) -> Any:
    """Returns an artifact from which TFX's factories read the same format."""
    from tfx.components.experimental.data_view import constants
    from tfx.components.util import examples_utils
    from tfx.types import standard_artifacts

    examples = standard_artifacts.Examples()
    examples_utils.set_payload_format(examples, examples_format.payload_format)
    if examples_format.data_view_uri is not None:
        examples.set_string_custom_property(
            constants.DATA_VIEW_URI_PROPERTY_KEY, examples_format.data_view_uri
        )
        # TFX picks the newest of several DataViews; this is already the one it picked.
        examples.set_string_custom_property(constants.DATA_VIEW_CREATE_TIME_KEY, "0")
    return examples
