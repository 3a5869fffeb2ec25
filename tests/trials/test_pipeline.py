"""What a trial sees of the pipeline: its examples, and all else that a `run_fn` sees."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow

import generic_trainer.trials as det
from generic_trainer.data import SplitCounts, make_dataset_factory
from generic_trainer.errors import ConfigurationError
from generic_trainer.estimator import tf
from generic_trainer.trials.estimator import EstimatorTrial
from generic_trainer.trials.keras import TFKerasTrial
from generic_trainer.trials.tensorflow import TensorFlowTrial
from tests.helpers import write_examples, write_schema

HPARAMS = {"global_batch_size": 4, "rate": 1e-4}
told = {}


@pytest.fixture
def inputs(tmp_path):
    """Returns the fields of `fn_args` that are about the pipeline: 32 and 8 examples, y = 2 x."""
    write_examples(tmp_path / "examples")
    write_schema(tmp_path / "schema")
    files = {split: [f"{tmp_path}/examples/Split-{split}/*"] for split in ("train", "eval")}
    return {
        "train_files": files["train"],
        "eval_files": files["eval"],
        "data_accessor": SimpleNamespace(tf_dataset_factory=make_dataset_factory()),
        "schema_path": str(tmp_path / "schema" / "schema.pbtxt"),
        "num_examples": SplitCounts(files),
        "train_steps": 12,
        "eval_steps": None,
        "base_model": "/base",
        "extra_inputs": {"vocabulary": ["/words"]},
        "hyperparameters": {"values": {"rate": 2e-4}},
    }


class Doubling(TFKerasTrial):
    def __init__(self, trial_context):
        self.context = trial_context

    def build_model(self):
        told.update(pipeline=self.context.pipeline, hparams=self.context.get_hparams())
        x = tensorflow.keras.Input([1], name="x")
        model = self.context.wrap_model(
            tensorflow.keras.Model({"x": x}, tensorflow.keras.layers.Dense(1)(x))
        )
        model.compile(tensorflow.keras.optimizers.SGD(self.context.get_hparam("rate")), "mse")
        return model

    def build_training_data_loader(self):
        return self.context.read_examples("train", label_key="y")

    def build_validation_data_loader(self):
        return self.context.read_examples("eval", label_key="y")


class DoublingEstimator(EstimatorTrial):
    def __init__(self, context):
        self.context = context

    def build_estimator(self):
        optimizer = self.context.wrap_optimizer(tf.compat.v1.train.GradientDescentOptimizer(1e-4))
        columns = [tf.feature_column.numeric_column("x")]
        return tf.compat.v1.estimator.LinearRegressor(columns, optimizer=optimizer)

    def build_train_spec(self):
        return tf.estimator.TrainSpec(lambda: self.context.read_examples("train", label_key="y"))

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(
            lambda: self.context.read_examples("eval", label_key="y"), steps=None
        )


def make_data_loaders(experiment_config, hparams):
    pipeline, size = det.get_pipeline(), hparams["global_batch_size"]
    return pipeline.examples("train", size, "y", seed=1), pipeline.examples("eval", size, "y")


class DoublingGraph(TensorFlowTrial):
    def build_graph(self, record, is_training):
        features, label = record
        w = tf.compat.v1.get_variable("w", [1, 1], initializer=tf.zeros_initializer())
        prediction = features["x"] @ w
        return {"loss": tf.reduce_mean((prediction - label) ** 2), "prediction": prediction}

    def optimizer(self):
        return tf.compat.v1.train.GradientDescentOptimizer(1e-4)

    def validation_metrics(self):
        return ["loss"]


@pytest.mark.parametrize(
    "trial_class",
    [Doubling, DoublingGraph, pytest.param(DoublingEstimator, marks=pytest.mark.slow)],
)
def test_examples_are_read_and_num_steps_is_the_length(
    trial_class, run_experiment, inputs, tmp_path
):
    [trial] = run_experiment(trial_class, {"hyperparameters": HPARAMS}, **inputs)
    assert trial["batches"] == 12
    assert trial["hparams"]["rate"] == 2e-4
    served = tensorflow.saved_model.load(str(tmp_path / "Format-Serving")).signatures
    for shape in tensorflow.nest.flatten(served["serving_default"].output_shapes):
        assert shape[0] is None  # not the batches of training
    losses = [entry["training"]["loss"] for entry in trial["history"] if "training" in entry]
    assert all(np.isfinite(losses))


def test_a_trial_sees_what_a_run_fn_sees(run_experiment, inputs):
    config = {"hyperparameters": HPARAMS, "searcher": {"max_length": {"epochs": 1}}}
    inputs["train_files"] = inputs["train_files"] + inputs["eval_files"]  # of two splits
    [trial] = run_experiment(Doubling, config, **inputs)
    assert trial["batches"] == (32 + 8) // 4  # of the examples that there are
    pipeline = told["pipeline"]
    assert pipeline.train_files == inputs["train_files"]
    assert (pipeline.num_examples["train"], pipeline.num_examples["eval"]) == (32, 8)
    assert [feature.name for feature in pipeline.schema.feature] == ["x", "y"]
    assert (pipeline.base_model, pipeline.train_steps) == ("/base", 12)
    assert pipeline.extra_inputs == {"vocabulary": ["/words"]}
    assert pipeline.data_accessor is inputs["data_accessor"]


def test_training_data_that_are_read_twice_differ_in_order(inputs):
    from generic_trainer.trials._pipeline import in_pipeline
    from generic_trainer.trials.keras import TFKerasTrialContext

    def read():
        with in_pipeline(SimpleNamespace(**{**inputs, "transform_graph_path": None})):
            context = TFKerasTrialContext.from_config({"hyperparameters": HPARAMS})
            datasets = [context.read_examples("train", label_key="y") for _ in range(2)]
        return [
            np.concatenate([label for _, label in dataset.take(8)]).ravel().tolist()
            for dataset in datasets
        ]

    first, second = read()
    assert sorted(first) == sorted(second) and first != second
    assert read() == [first, second]


def test_eval_steps_are_the_batches_of_a_validation(inputs):
    from generic_trainer.trials._pipeline import in_pipeline
    from generic_trainer.trials.keras import TFKerasTrialContext

    with in_pipeline(SimpleNamespace(**{**inputs, "eval_steps": 1, "transform_graph_path": None})):
        context = TFKerasTrialContext.from_config({"hyperparameters": HPARAMS})
        [(features, label)] = context.read_examples("eval", label_key="y")
    np.testing.assert_array_equal(label, 2 * features["x"].numpy())
    assert len(label) == 4


def test_there_is_no_pipeline_in_a_notebook():
    context = det.TrialContext.from_config({"hyperparameters": HPARAMS})
    with pytest.raises(ConfigurationError, match="No inputs of a pipeline are available"):
        context.pipeline  # noqa: B018 - asking is what fails
