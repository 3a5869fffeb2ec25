"""TFMA's evaluation of a model on a few examples, as the Evaluator makes it.

The transforms are TFMA's own. They are computed in this process, which takes a fifth of the time
that Beam's runner needs for them; where that raises, Beam's runner has the last word.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from generic_trainer._core import internals
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._core.texts import reason_of
from generic_trainer.validation._model import ModelUnderTest

EXAMPLES = 20  # of which one is a batch of its own

_logger = logging.getLogger(__name__)


def evaluate(model: ModelUnderTest) -> dict[str, float]:
    """Evaluates a model on the first of its records, with its eval config.

    Returns:
        Metric → value, of the metrics that are one number, over all examples.

    Raises:
        Exception: what the Evaluator would end with.
    """
    from tensorflow_model_analysis.utils import config_util

    config = config_util.update_eval_config_with_defaults(
        model.eval_config,
        has_baseline=model.contract.base_model is not None,
        rubber_stamp=True,
    )
    config_util.verify_eval_config(config)
    try:
        written = in_process(model, config)
    except Exception as error:
        _logger.info("TFMA is run by Beam, as this ended without it: %s", reason_of(error))
        written = with_beam(model, config)
    candidates = [spec.name for spec in config.model_specs if not spec.is_baseline]
    return dict(_numbers(written, ["", *candidates]))


def in_process(model: ModelUnderTest, config: Any) -> list[Any]:
    """Returns all protos that the Evaluator would write, without a runner of Beam's."""
    import tensorflow as tf
    from apache_beam.utils.shared import Shared

    from generic_trainer.validation._in_process_beam import InProcessPipeline

    if Path("keras_metadata.pb") in model.files:  # which TFMA has Keras 2 load: not both in memory
        model.release()
    pipeline = InProcessPipeline()
    keras_models = tf.keras.models
    # TFMA has Keras load a model of Keras 2 to learn that it is one, and then again.
    load_once = functools.cache(keras_models.load_model)
    with internals.replaced_method(
        keras_models, "load_model", lambda _, *args, **kwargs: load_once(*args, **kwargs)
    ):
        models = _models(model, config)
        for each in models:
            _lend_loaded(each, model)
        # AutoGraph would rewrite the metrics of Keras 2, which takes longer than everything else.
        build = tf.autograph.experimental.do_not_convert(_build)
        build(pipeline, model, config, models, os.devnull)
    Shared().acquire(InProcessPipeline)  # Beam keeps what was acquired last, and that was the model
    return pipeline.written


def _lend_loaded(shared: Any, model: ModelUnderTest) -> None:
    """Has an `EvalSharedModel` take the model that is loaded, where TFMA would load it likewise."""
    import tensorflow_model_analysis as tfma

    if shared.model_type == tfma.TF_GENERIC and shared.model_path == str(model.directory):
        loader = shared.model_loader
        construct, loader.construct_fn = loader.construct_fn, lambda: model.loaded
        loader.load()  # from now on the process has one, and constructs no other
        loader.construct_fn = construct  # which TFMA can serialize


def with_beam(model: ModelUnderTest, config: Any) -> list[Any]:
    """Returns the metrics that the Evaluator would write, from Beam's own runner."""
    import apache_beam as beam
    import tensorflow_model_analysis as tfma

    options = beam.options.pipeline_options.PipelineOptions(["--direct_running_mode=in_memory"])
    with ScratchFolder("evaluation-") as folder:
        with beam.Pipeline(runner="DirectRunner", options=options) as pipeline:
            _build(pipeline, model, config, _models(model, config), folder)
        return list(tfma.load_metrics(folder))


def _models(model: ModelUnderTest, config: Any) -> list[Any]:
    """Returns an `EvalSharedModel` for each of the config's models."""
    import tensorflow_model_analysis as tfma

    return [
        tfma.default_eval_shared_model(
            eval_saved_model_path=(
                model.contract.base_model if spec.is_baseline else str(model.directory)
            ),
            model_name=spec.name,
            eval_config=config,
        )
        for spec in config.model_specs
    ]


def _build(
    pipeline: Any, model: ModelUnderTest, config: Any, models: list[Any], output_dir: str
) -> None:
    import apache_beam as beam
    import tensorflow_model_analysis as tfma
    from tensorflow_model_analysis import constants
    from tfx_bsl.tfxio import tensor_adapter, tf_example_record

    io = tf_example_record.TFExampleBeamRecord(
        physical_format="inmem",
        telemetry_descriptors=["GenericTrainer"],
        schema=model.schema,
        raw_record_column_name=constants.ARROW_INPUT_COLUMN,
    )
    adapter = None
    if model.schema is not None:
        adapter = tensor_adapter.TensorAdapterConfig(
            arrow_schema=io.ArrowSchema(), tensor_representations=io.TensorRepresentations()
        )
    _ = (
        pipeline
        | "Examples" >> beam.Create(model.records[:EXAMPLES])
        | "ToArrow" >> io.BeamSource(batch_size=EXAMPLES - 1)
        | "Evaluate"
        >> tfma.ExtractEvaluateAndWriteResults(
            eval_shared_model=models[0] if len(models) == 1 else models,
            eval_config=config,
            output_path=output_dir,
            tensor_adapter_config=adapter,
        )
    )


def _numbers(written: Iterable[Any], models: Collection[str]) -> Iterator[tuple[str, float]]:
    """Yields the metrics over all examples, of the `MetricsForSlice` among what was written."""
    for each in written:
        if type(each).__name__ != "MetricsForSlice" or _slice_of(each):
            continue
        for metric in each.metric_keys_and_values:
            key = metric.key
            is_number = metric.value.WhichOneof("type") == "double_value"
            if is_number and key.model_name in models:
                name = f"{key.output_name}/{key.name}".lstrip("/")
                yield name + "_diff" * key.is_diff, metric.value.double_value.value


def _slice_of(metrics: Any) -> bool:
    """Returns whether metrics are of a slice, or compare slices."""
    return metrics.HasField("cross_slice_key") or bool(metrics.slice_key.single_slice_keys)
