"""An evaluation in small: TFMA on a few examples, with Beam's runner in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def evaluate(
    config: Any,
    model_dir: str,
    base_model_dir: str | None,
    records: list[bytes],
    schema: Any,
    output_dir: Path,
) -> dict[str, float]:
    """Evaluates a model the way `tfx.components.Evaluator` does.

    Args:
        config: the `EvalConfig`.
        model_dir: the SavedModel.
        base_model_dir: the SavedModel to compare with, or None.
        records: serialized examples.
        schema: their `Schema`, or None.
        output_dir: where TFMA may write; it must not exist.

    Returns:
        Metric → value, of the metrics that are one number, over all examples.

    Raises:
        Exception: whatever TFMA or Beam raises.
    """
    import apache_beam as beam
    import tensorflow_model_analysis as tfma
    from tensorflow_model_analysis.utils import config_util

    config = config_util.update_eval_config_with_defaults(
        config, has_baseline=base_model_dir is not None, rubber_stamp=True
    )
    config_util.verify_eval_config(config)
    models = [
        tfma.default_eval_shared_model(
            eval_saved_model_path=base_model_dir if spec.is_baseline else model_dir,
            model_name=spec.name,
            eval_config=config,
        )
        for spec in config.model_specs
    ]
    io = _tfxio(schema)
    options = beam.options.pipeline_options.PipelineOptions(["--direct_running_mode=in_memory"])
    with beam.Pipeline(runner="DirectRunner", options=options) as pipeline:
        _ = (
            pipeline
            | "Examples" >> beam.Create(records)
            | "ToArrow" >> io.BeamSource()
            | "Evaluate"
            >> tfma.ExtractEvaluateAndWriteResults(
                eval_shared_model=models[0] if len(models) == 1 else models,
                eval_config=config,
                output_path=str(output_dir),
                tensor_adapter_config=_adapter(io) if schema is not None else None,
            )
        )
    return dict(_metrics(tfma.load_eval_result(str(output_dir), model_name=_name(config))))


def _tfxio(schema: Any) -> Any:
    from tensorflow_model_analysis import constants
    from tfx_bsl.tfxio import tf_example_record

    return tf_example_record.TFExampleBeamRecord(
        physical_format="inmem",
        telemetry_descriptors=["GenericTrainer"],
        schema=schema,
        raw_record_column_name=constants.ARROW_INPUT_COLUMN,
    )


def _adapter(io: Any) -> Any:
    from tfx_bsl.tfxio import tensor_adapter

    return tensor_adapter.TensorAdapterConfig(
        arrow_schema=io.ArrowSchema(), tensor_representations=io.TensorRepresentations()
    )


def _name(config: Any) -> str | None:
    names = [spec.name for spec in config.model_specs if not spec.is_baseline]
    return names[0] if len(config.model_specs) > 1 else None


def _metrics(result: Any) -> Iterator[tuple[str, float]]:
    for slice_key, outputs in result.slicing_metrics:
        if slice_key:
            continue
        for output, by_class in outputs.items():
            for metrics in by_class.values():
                for metric, value in metrics.items():
                    number = value.get("doubleValue", value.get("double_value"))
                    if number is not None:
                        yield f"{output}/{metric}".lstrip("/"), _number(number)


def _number(value: Any) -> float:
    return float(value) if not isinstance(value, str) else float(value.replace("Infinity", "inf"))
