"""TFX's own example pipelines with GenericTrainer in place of TFX's Trainer.

::

    python -m tests.module_files.tfx_examples penguin DATA_FOLDER FOLDER

A process of its own, because which Keras `tf.keras` is gets decided when TensorFlow is imported.
"""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tensorflow_model_analysis.proto import config_pb2
from tfx import v1 as tfx

from benchmarks._tfx_examples import before_training, run_components, transform_of
from generic_trainer import GenericTrainer

EVAL_CONFIG = """
  model_specs {{
    signature_name: "serving_default"
    {preprocessing}
    label_key: "{label}"
  }}
  slicing_specs {{}}
  metrics_specs {{
    metrics {{
      class_name: "{metric}"
      threshold {{ value_threshold {{ lower_bound {{ value: 0.6 }} }} }}
    }}
  }}
"""


@dataclass(frozen=True)
class Example:
    """What distinguishes one of TFX's example pipelines from another.

    Attributes:
        module: import path of the module file, which ships inside TFX.
        label: name of the label that the Evaluator reads; a transformed one ends with "_xf".
        metric: the accuracy that the example's Evaluator asks to be at least 0.6.
        train_steps: training batches, fewer than in the example.
        is_csv: whether the data are CSV files, and not TFRecords of tf.Examples.
        is_pickle: whether the model is a pickle, trained without Transform, for no Evaluator.
    """

    module: str
    label: str
    metric: str
    train_steps: int
    is_csv: bool = True
    is_pickle: bool = False


_PENGUIN = "tfx.examples.penguin"
_SPARSE = "SparseCategoricalAccuracy"
_TAXI = "tfx.examples.chicago_taxi_pipeline.taxi_utils_native_keras"
_MNIST = "tfx.examples.mnist.mnist_utils_native_keras"
_SKLEARN = f"{_PENGUIN}.experimental.penguin_utils_sklearn"
EXAMPLES = {
    "penguin": Example(f"{_PENGUIN}.penguin_utils_keras", "species_xf", _SPARSE, 100),
    "taxi": Example(_TAXI, "tips_xf", "BinaryAccuracy", 200),
    "mnist": Example(_MNIST, "image_class", _SPARSE, 150, is_csv=False),
    "sklearn": Example(_SKLEARN, "species", "", 2000, is_pickle=True),
}


def run_example(example: Example, data_folder: Path, folder: Path) -> None:
    """Runs an example under the local orchestrator; its metadata is `folder`/metadata.db."""
    examples, statistics, schema = before_training(data_folder, is_csv=example.is_csv)
    spec = importlib.util.find_spec(example.module)
    assert spec is not None and spec.origin is not None
    trainer_args = {
        "module_file": spec.origin,
        "schema": schema.outputs["schema"],
        "train_args": tfx.proto.TrainArgs(num_steps=example.train_steps),
        "eval_args": tfx.proto.EvalArgs(num_steps=5),
    }
    if example.is_pickle:
        trainer = GenericTrainer(examples=examples.outputs["examples"], **trainer_args)
        run_components([examples, statistics, schema, trainer], folder)
        return
    transform = transform_of(example.module, examples, schema)
    trainer = GenericTrainer(
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        **trainer_args,
    )
    is_transformed = example.label.endswith("_xf")
    config = EVAL_CONFIG.format(
        label=example.label,
        metric=example.metric,
        preprocessing='preprocessing_function_names: "transform_features"' * is_transformed,
    )
    evaluator = tfx.components.Evaluator(
        examples=examples.outputs["examples"],
        model=trainer.outputs["model"],
        eval_config=text_format.Parse(config, config_pb2.EvalConfig()),
    )
    run_components([examples, statistics, schema, transform, trainer, evaluator], folder)


if __name__ == "__main__":
    name, data_folder, folder = sys.argv[1:]
    run_example(EXAMPLES[name], Path(data_folder), Path(folder))
