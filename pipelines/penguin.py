"""The penguin pipeline: from a CSV to a pushed model that tells three species apart.

CsvExampleGen → StatisticsGen → SchemaGen → ExampleValidator → Transform → (Tuner) →
GenericTrainer → latest blessed model → Evaluator → Pusher. The same DAG runs under every
orchestrator: `run_local`, `run_beam`, `compile_kubeflow`.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf import text_format
from tensorflow_model_analysis.proto import config_pb2
from tfx import v1 as tfx

from generic_trainer import Distribution, GenericTrainer

EVAL_CONFIG = """
  model_specs {
    signature_name: "serving_default"
    prediction_key: "probabilities"
    preprocessing_function_names: "transform_features"
    label_key: "species_xf"
  }
  slicing_specs {}
  slicing_specs { feature_keys: "island" }
  metrics_specs {
    metrics { class_name: "ExampleCount" }
    metrics {
      class_name: "SparseCategoricalAccuracy"
      threshold {
        value_threshold { lower_bound { value: 0.9 } }
        # Against the blessed model, where there is one: at most two points worse.
        change_threshold { direction: HIGHER_IS_BETTER absolute { value: -0.02 } }
      }
    }
  }
"""


def create_pipeline(
    *,
    pipeline_root: str,
    data_root: str,
    module_file: str,
    serving_dir: str,
    pipeline_name: str = "penguin",
    metadata_path: str | None = None,
    train_steps: int = 200,
    eval_steps: int = 5,
    tune: bool = False,
    warm_start: bool = False,
    distribution: Distribution | None = None,
    beam_pipeline_args: Sequence[str] = (),
) -> tfx.dsl.Pipeline:
    """Builds the DAG.

    Args:
        pipeline_root: Folder for the artifacts.
        data_root: Folder with the penguin CSV.
        module_file: Path of a module file with `preprocessing_fn` and `run_fn`.
        serving_dir: Folder that receives blessed models, each in a numbered sub-folder.
        pipeline_name: Artifacts and cached results are looked up under this name.
        metadata_path: SQLite file; None where the orchestrator keeps the metadata itself.
        train_steps: Training batches.
        eval_steps: Validation batches, of module files whose validation data are endless.
        tune: Search hyperparameters first, with the module file's `tuner_fn`.
        warm_start: Hand the latest blessed model to `run_fn` as `fn_args.base_model`.
        distribution: On how many workers to train, and who starts them.
        beam_pipeline_args: Options for the components that run on Beam.

    Returns:
        A pipeline for any TFX runner.
    """
    examples = tfx.components.CsvExampleGen(input_base=data_root)
    statistics = tfx.components.StatisticsGen(examples=examples.outputs["examples"])
    # Without inferred shapes every feature stays optional, as in the field.
    schema = tfx.components.SchemaGen(
        statistics=statistics.outputs["statistics"], infer_feature_shape=False
    )
    validator = tfx.components.ExampleValidator(
        statistics=statistics.outputs["statistics"], schema=schema.outputs["schema"]
    )
    transform = tfx.components.Transform(
        examples=examples.outputs["examples"],
        schema=schema.outputs["schema"],
        module_file=module_file,
        disable_statistics=True,
    )
    tuner = tfx.components.Tuner(
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        module_file=module_file,
        train_args=tfx.proto.TrainArgs(num_steps=train_steps),
        eval_args=tfx.proto.EvalArgs(num_steps=eval_steps),
    )
    blessed = tfx.dsl.Resolver(
        strategy_class=tfx.dsl.experimental.LatestBlessedModelStrategy,
        model=tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
        model_blessing=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelBlessing),
    ).with_id("LatestBlessedModel")
    eval_config = text_format.Parse(EVAL_CONFIG, config_pb2.EvalConfig())
    trainer = GenericTrainer(
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        schema=schema.outputs["schema"],
        base_model=blessed.outputs["model"] if warm_start else None,
        hyperparameters=tuner.outputs["best_hyperparameters"] if tune else None,
        module_file=module_file,
        train_args=tfx.proto.TrainArgs(num_steps=train_steps),
        eval_args=tfx.proto.EvalArgs(num_steps=eval_steps),
        # The exported model is tried as the Evaluator will, on what the Evaluator will read.
        eval_config=eval_config,
        distribution=distribution,
    )
    evaluator = tfx.components.Evaluator(
        examples=examples.outputs["examples"],
        model=trainer.outputs["model"],
        baseline_model=blessed.outputs["model"],
        eval_config=eval_config,
    )
    pusher = tfx.components.Pusher(
        model=trainer.outputs["model"],
        model_blessing=evaluator.outputs["blessing"],
        infra_blessing=trainer.outputs["infra_blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=serving_dir)
        ),
    )
    components = [examples, statistics, schema, validator, transform, blessed, trainer]
    components += [tuner] if tune else []
    components += [evaluator, pusher]
    return tfx.dsl.Pipeline(
        pipeline_name=pipeline_name,
        pipeline_root=pipeline_root,
        components=components,
        enable_cache=True,
        metadata_connection_config=_sqlite(metadata_path),
        beam_pipeline_args=list(beam_pipeline_args),
    )


def _sqlite(path: str | None) -> object | None:
    if path is None:
        return None
    return tfx.orchestration.metadata.sqlite_metadata_connection_config(path)
