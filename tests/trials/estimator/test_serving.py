"""What is published of a trial without serving input receiver functions."""

import numpy as np
import pytest
import tensorflow as tf_itself
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer.errors import ExportError
from generic_trainer.estimator import tf
from tests.trials.conftest import make_fn_args
from tests.trials.estimator.one_weight import WithoutReceivers

X = np.array([[1.0], [3.0]], np.float32)


class Kinds(WithoutReceivers):
    """A premade classifier, whose default signature takes serialized tf.Examples only."""

    def build_estimator(self):
        columns = [tf.feature_column.numeric_column(name) for name in ("size", "count")]
        self.context.wrap_optimizer(None)
        return tf.estimator.LinearClassifier(columns, n_classes=3)

    def data(self):
        features = {"size": np.float64([0.5, 1.5, 2.5]), "count": np.int32([1, 2, 3])}
        data = tf_itself.data.Dataset.from_tensor_slices((features, np.int64([0, 1, 2])))
        return self.context.wrap_dataset(data).batch(2)

    def build_train_spec(self):
        return tf.estimator.TrainSpec(self.data)

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(self.data, steps=None)


def schema(tmp_path, *names):
    features = [schema_pb2.Feature(name=name, type=schema_pb2.FLOAT) for name in names]
    path = tmp_path / "schema.pbtxt"
    path.write_text(text_format.MessageToString(schema_pb2.Schema(feature=features)))
    return str(path)


def published(open_trial, trial_class, tmp_path, *, restored=True, **fields):
    """Trains, saves, and publishes from the checkpoint as an experiment does."""
    trial = open_trial(trial_class)
    trial.train(3)
    if restored:
        trial.save(str(tmp_path / "saved"))
        trial = open_trial(trial_class, batches_trained=3, checkpoint_dir=str(tmp_path / "saved"))
    trial.export(make_fn_args(tmp_path, **fields))
    model = tf_itself.saved_model.load(str(tmp_path / "Format-Serving"))
    return model, model.signatures["serving_default"]


@pytest.mark.parametrize("restored", [True, False])
def test_a_tensor_for_each_feature(open_trial, tmp_path, restored):
    _, serve = published(open_trial, WithoutReceivers, tmp_path, restored=restored)
    [outputs] = serve(x=tf_itself.constant(X)).values()
    weights = (outputs / X).numpy().ravel()
    assert weights[0] == pytest.approx(weights[1])
    assert weights[0] > 1  # trained


class WithPlaceholders(WithoutReceivers):
    def build_serving_input_receiver_fns(self):
        features = {"x": tf.compat.v1.placeholder(tf.float32, [None, 1])}
        return {"model": tf.estimator.export.build_raw_serving_input_receiver_fn(features)}


class WithValues(WithoutReceivers):
    """What it reads to build the receivers, such as a width in a file, are values."""

    def build_serving_input_receiver_fns(self):
        [width] = tf_itself.data.Dataset.from_tensors(1).as_numpy_iterator()
        features = {"x": tf_itself.TensorSpec([None, int(tf_itself.constant(width))], name="x")}

        def receiver():
            x = tf.compat.v1.placeholder(features["x"].dtype, features["x"].shape)
            return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})

        return {"model": receiver}


@pytest.mark.parametrize("trial_class", [WithPlaceholders, WithValues])
def test_receivers_built_from_placeholders_or_values_of_a_method(open_trial, tmp_path, trial_class):
    _, serve = published(open_trial, trial_class, tmp_path)
    [outputs] = serve(x=tf_itself.constant(X)).values()
    assert outputs.shape == X.shape


def test_predictions_of_a_premade_estimator_are_served_by_default(open_trial, tmp_path):
    _model, serve = published(open_trial, Kinds, tmp_path)
    size, count = tf_itself.constant([0.5, 2.0], tf_itself.float64), tf_itself.constant([1, 2])
    outputs = serve(size=size, count=count)
    assert outputs["probabilities"].shape == (2, 3)


def test_examples_where_the_pipeline_has_all_features(open_trial, tmp_path):
    path = schema(tmp_path, "size", "count", "else")
    model, serve = published(open_trial, Kinds, tmp_path, schema_path=path)
    example = tf_itself.train.Example()
    example.features.feature["size"].float_list.value.append(0.5)
    example.features.feature["count"].int64_list.value.append(1)
    serialized = tf_itself.constant([example.SerializeToString()])
    [name] = serve.structured_input_signature[1]
    assert serve(**{name: serialized})["scores"].shape == (1, 3)
    assert model.signatures["predict"](examples=serialized)["probabilities"].shape == (1, 3)


def test_a_feature_that_no_signature_takes(open_trial, tmp_path):
    class Sparse(WithoutReceivers):
        def build_validation_spec(self):
            def sparse(features, label):
                return {"x": tf_itself.sparse.from_dense(features["x"])}, label

            return tf.estimator.EvalSpec(lambda: self.train_data().map(sparse), steps=None)

    trial = open_trial(Sparse)
    trial.train(1)
    with pytest.raises(ExportError, match="'x' is a SparseTensor, which a signature cannot take"):
        trial.export(make_fn_args(tmp_path))
