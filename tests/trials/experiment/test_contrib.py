"""`tf1` and `tf.contrib`: names, and a program of their time that runs with its imports changed."""

import functools
import importlib.util
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.estimator import tf1, v1
from generic_trainer.trials import experiment
from generic_trainer.trials._scripts.loading import load
from generic_trainer.trials.experiment import _learn, contrib
from tests.examples import example
from tests.trials.conftest import ported, run_module_file

FILES = Path(__file__).with_name("written_for_contrib")

needs_slim = pytest.mark.skipif(
    importlib.util.find_spec("tf_slim") is None, reason="tf.contrib.layers and slim are tf_slim's"
)


def run_script(name, tmp_path, *arguments):
    path = str(ported(FILES / f"{name}.py", tmp_path))
    load(lambda: runpy.run_path(path, run_name="__main__"), [path, *map(str, arguments)])


def served(folder):
    [export] = folder.iterdir()
    return tf.saved_model.load(str(export)).signatures["serving_default"]


def steps_of(folder):
    return int(tf.train.latest_checkpoint(str(folder)).rpartition("-")[2])


def test_names_of_tensorflow_1():
    assert tf1.estimator is v1
    assert tf1.get_variable is tf.compat.v1.get_variable
    assert tf1.contrib is contrib
    assert callable(tf1.layers.dense)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("learn.Experiment", experiment.Experiment),
        ("learn.ModeKeys", experiment.ModeKeys),
        ("learn.RunConfig", experiment.RunConfig),
        ("learn.learn_runner", experiment.learn_runner),
        ("learn.make_export_strategy", experiment.make_export_strategy),
        ("learn.Estimator", _learn.Estimator),
        ("learn.io.numpy_input_fn", v1.inputs.numpy_input_fn),
        ("learn.python.learn.learn_runner.run", experiment.learn_runner.run),
        ("learn.python.learn.estimators.run_config.RunConfig", experiment.RunConfig),
        ("layers.feature_column.one_hot_column", None),
        ("layers.create_feature_spec_for_parsing", None),
        ("lookup.HashTable", None),
        ("training.HParams", experiment.HParams),
        ("data.Dataset", tf.compat.v1.data.Dataset),
        ("data.map_and_batch", tf.compat.v1.data.experimental.map_and_batch),
        ("framework.get_global_step", tf.compat.v1.train.get_global_step),
        ("framework.nest", tf.compat.v1.nest),
        ("util.nest", tf.compat.v1.nest),
        ("util.constant_value", tf.compat.v1.get_static_value),
        ("layers.safe_embedding_lookup_sparse", tf.compat.v1.nn.safe_embedding_lookup_sparse),
        ("learn.PredictionKey.CLASSES", "classes"),
        ("learn.ProblemType.CLASSIFICATION", 1),
        ("signal.stft", tf.compat.v1.signal.stft),
        ("lite.TFLiteConverter", tf.compat.v1.lite.TFLiteConverter),
    ],
)
def test_names_of_contrib(name, meant):
    found = functools.reduce(getattr, name.split("."), tf1.contrib)
    assert found is meant or (meant is None and callable(found))


@needs_slim
def test_names_of_slim():
    from tf_slim.training.training import create_train_op

    assert tf1.contrib.training.create_train_op is create_train_op
    assert callable(tf1.contrib.training.evaluate_repeatedly)


def test_names_that_contrib_has_not(monkeypatch):
    with pytest.raises(AttributeError, match=r"tf\.contrib\.learn\.Experimentt is not available"):
        _ = tf1.contrib.learn.Experimentt
    with pytest.raises(AttributeError, match=r"tf\.contrib\.gam is not available here"):
        _ = tf1.contrib.gam
    with pytest.raises(ImportError, match="learn_runer"):
        importlib.import_module(f"{contrib.__name__}.learn.python.learn.learn_runer")
    monkeypatch.setitem(sys.modules, "tf_slim", None)
    with pytest.raises(ConfigurationError, match="pip install tf_slim"):
        _ = tf1.contrib.slim.conv2d


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("tpu", "tf.distribute.TPUStrategy"),
        ("learn.datasets", "sklearn.datasets"),
        ("learn.python.learn.datasets", "sklearn.datasets"),
        ("learn.preprocessing", "TextVectorization"),
        ("learn.python.learn.learn_io.generator_io", "Dataset.from_generator"),
        ("crf", "a loss of your own"),
        ("rnn.LSTMBlockFusedCell", "rnn_cell.LSTMCell"),
        ("learn.multi_label_head", "tf.estimator.MultiLabelHead"),
    ],
)
def test_what_is_gone_names_what_took_its_place(path, place):
    parent, _, name = path.rpartition(".")
    for look in (
        lambda: getattr(importlib.import_module(f"{contrib.__name__}.{parent}".strip(".")), name),
        lambda: importlib.import_module(f"{contrib.__name__}.{path}"),
    ):
        with pytest.raises(ConfigurationError, match=rf"is gone: .*{place}.* took its place"):
            look()


def multi_head(heads):
    return heads.multi_head(
        [heads.regression_head(name="size"), heads.binary_classification_head(name="kind")]
    )


SUM = tf1.losses.Reduction.SUM


@pytest.mark.parametrize(
    ("make", "labels", "key", "growth"),
    [
        (lambda heads: heads.binary_classification_head(), [[0], [1]], "probabilities", 1),
        (lambda heads: heads.multi_class_head(3), [[0], [2]], "probabilities", 1),
        (lambda heads: heads.multi_label_head(2), [[0, 1], [1, 0]], "probabilities", 1),
        (lambda heads: heads.regression_head(), [[0.0], [2.0]], "predictions", 1),
        (lambda heads: heads.regression_head(None, 2), [[0.0, 1.0], [2.0, 0.0]], "predictions", 1),
        (lambda heads: heads.regression_head(loss_reduction=SUM), [[0.0], [2.0]], "predictions", 2),
        (lambda heads: heads.poisson_regression_head(), [[0.0], [2.0]], "predictions", 1),
        (lambda heads: heads.logistic_regression_head(), [[0.0], [1.0]], "predictions", 1),
        (multi_head, {"size": [[0.0], [2.0]], "kind": [[0], [1]]}, ("size", "predictions"), 1),
    ],
)
def test_heads_take_optimizers_of_tensorflow_1(make, labels, key, growth, tmp_path):
    def model_fn(features, labels, mode):
        head = make(tf1.contrib.estimator)
        hidden = tf1.layers.batch_normalization(features["x"], training=mode == "train")
        logits = tf1.layers.dense(hidden, head.logits_dimension)
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        return head.create_estimator_spec(features, mode, logits, labels, optimizer)

    def read(repeats):
        tables = labels if isinstance(labels, dict) else {"": labels}
        tables = {name: np.repeat(table, repeats, axis=0) for name, table in tables.items()}
        x = np.repeat(np.float32([[1.0], [2.0]]), repeats, axis=0)
        return tf.data.Dataset.from_tensors(({"x": x}, tables.get("", tables)))

    trained = v1.Estimator(model_fn, str(tmp_path), v1.RunConfig(tf_random_seed=1))
    trained.train(lambda: read(1).repeat(20))
    assert trained.get_variable_value("batch_normalization/moving_mean") > 0.0
    once, twice = (trained.evaluate(lambda n=n: read(n))["loss"] for n in (1, 2))
    assert twice == pytest.approx(growth * once, rel=1e-4)  # the mean over the batch, or the sum
    assert key in next(trained.predict(lambda: read(1)))


def test_arguments_of_then(caplog):
    layers, now = tf1.contrib.layers, tf1.feature_column
    town = layers.sparse_column_with_hash_bucket("town", 20, dtype=tf.string)
    assert town == now.categorical_column_with_hash_bucket("town", 20)
    weighted = layers.weighted_sparse_column(town, weight_column_name="w")
    assert weighted == now.weighted_categorical_column(town, "w")
    with caplog.at_level("WARNING"):
        floor = layers.sparse_column_with_integerized_feature(
            "floor", bucket_size=9, combiner="mean"
        )
    assert floor == now.categorical_column_with_identity("floor", 9)
    assert "(combiner='mean'): the argument is ignored" in caplog.text
    with pytest.raises(ConfigurationError, match=r"give \(1,\) by name"):
        layers.sparse_column_with_vocabulary_file("town", "towns.txt", 1)


def test_premade_estimators_fit_and_evaluate_arrays_and_input_functions(tmp_path):
    x = np.linspace(0, 1, 12, dtype=np.float32)[:, None]
    read = tf1.estimator.inputs.numpy_input_fn({"": x}, x > 0.5, 4, num_epochs=None, shuffle=False)
    columns = [tf1.contrib.layers.real_valued_column("")]
    made = tf1.contrib.learn.LinearClassifier(columns, model_dir=str(tmp_path))
    assert made.fit(x, x > 0.5, steps=3, batch_size=4).fit(input_fn=read, max_steps=5) is made
    assert steps_of(tmp_path) == 5
    metrics = {"zeros": tf1.contrib.learn.MetricSpec(tf1.metrics.false_positives, "class_ids")}
    found = made.evaluate(x, x > 0.5, batch_size=4, metrics=metrics)
    assert {"accuracy", "loss", "zeros", "global_step"} <= found.keys()
    del found["zeros"]
    assert made.evaluate(input_fn=read, steps=3) == found  # of the same twelve rows


@pytest.mark.parametrize(
    "kind", ["LinearRegressor", "LinearClassifier", "DNNClassifier", "DNNRegressor"]
)
def test_premade_estimators_train_on_the_mean_of_a_batch(kind, tmp_path):
    x = np.arange(1, 9, dtype=np.float32)[:, None]
    y = 3 * x[:, 0] if kind.endswith("Regressor") else x[:, 0] > 4
    columns = [tf1.contrib.layers.real_valued_column("")]
    rate = tf1.train.GradientDescentOptimizer(0.01)
    options = {"hidden_units": [2]} if kind.startswith("DNN") else {}
    made = getattr(tf1.contrib.learn, kind)(
        feature_columns=columns, optimizer=rate, model_dir=str(tmp_path), **options
    )
    made.fit(x, y, steps=1)
    if kind == "LinearRegressor":
        name = "linear/linear_model//weights"
        expected = 0.01 * np.mean(2 * y * x[:, 0])
        np.testing.assert_allclose(made.get_variable_value(name), [[expected]], rtol=1e-5)
    found = made.evaluate(x, y)
    assert found["loss"] == pytest.approx(found["average_loss"], rel=1e-5)


def test_the_original_of_a_moved_estimator_keeps_its_sum(tmp_path):
    columns = [tf1.feature_column.numeric_column("x")]
    moved = contrib.__name__.rpartition(".")[0] + ".python.estimator.canned.linear"
    x, y = np.ones([4, 1], np.float32), np.ones(4, np.float32)
    read = tf1.estimator.inputs.numpy_input_fn({"x": x}, y, 4, num_epochs=1, shuffle=False)
    made = importlib.import_module(moved).LinearRegressor(columns, model_dir=str(tmp_path))
    found = made.train(read).evaluate(read)
    assert found["loss"] == pytest.approx(4 * found["average_loss"], rel=1e-5)


@pytest.mark.parametrize("size", [None, 3])
def test_fit_goes_through_all_rows_before_it_begins_again(size, tmp_path):
    seen = []

    def model_fn(features, targets, mode):
        def note(x, y):
            assert y.tolist() == (2 * x[:, 0]).tolist()
            seen.append(x[:, 0].tolist())
            return np.float32(0)

        noted = tf1.numpy_function(note, [features, targets], tf.float32)
        step = tf1.assign_add(tf1.train.get_global_step(), 1)
        return features, noted, tf1.group(step, noted)

    made = tf1.contrib.learn.Estimator(model_fn, str(tmp_path))
    x = np.arange(8, dtype=np.float32)[:, None]
    made.fit(x, 2 * x[:, 0], steps=9, batch_size=size)
    rows = [row for batch in seen for row in batch]
    for start in range(0, len(rows) - 7, 8):
        assert sorted(rows[start : start + 8]) == list(range(8))
    with pytest.raises(ConfigurationError, match=r"\[7, 8\]"):
        made.fit(x, x[1:], steps=1)


def test_fit_takes_columns_of_any_kind(tmp_path):
    layers = tf1.contrib.layers
    columns = [
        layers.sparse_column_with_keys("town", ["Jena", "Ulm"]),
        layers.real_valued_column("x"),
    ]
    made = tf1.contrib.learn.LinearClassifier(
        columns, weight_column_name="w", model_dir=str(tmp_path)
    )
    x = {"town": np.array(["Jena", "Ulm", "Ulm"]), "x": [1.0, 2.0, 3.0], "w": np.ones(3)}
    made.fit(x, [0, 1, 1], steps=2)
    made.fit({**x, "town": x["town"].astype(object)}, [0, 1, 1], steps=2)
    assert steps_of(tmp_path) == 4


PRECISION = tf1.metrics.precision


@pytest.mark.parametrize(
    ("metric_fn", "expected"),
    [
        (lambda predictions, labels: PRECISION(labels, predictions), 1.0),
        (lambda targets, predictions: PRECISION(targets, predictions), 1.0),
        (lambda label, prediction: PRECISION(label, prediction), 1.0),
        (lambda logits, target: PRECISION(target, logits), 1.0),
        (lambda labels, probs: PRECISION(labels, probs), 1.0),
        (lambda probs, truth: PRECISION(truth, probs), 1.0),
        (lambda probs, labels: PRECISION(labels, probs), 1.0),
        (lambda predictions: tf1.metrics.mean(predictions), 0.25),
        (lambda probs: tf1.metrics.mean(probs), 0.25),
    ],
)
def test_a_metric_gets_labels_and_predictions_by_their_names(metric_fn, expected):
    assert measured(_learn.MetricSpec(metric_fn)) == expected


@pytest.mark.parametrize(
    "metric_fn",
    [
        lambda targets, predictions, weights: PRECISION(targets, predictions, weights),
        lambda weight, label, prediction: PRECISION(label, prediction, weight),
        lambda labels, probs, w: PRECISION(labels, probs, w),
        lambda probs, truth, w: PRECISION(truth, probs, w),
    ],
)
def test_a_metric_gets_weights(metric_fn):
    assert measured(_learn.MetricSpec(metric_fn, weight_key="w")) == 1


def measured(spec):
    """Returns the value of a metric of four rows: one is found, of three."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        labels, predictions = tf1.constant([1, 1, 1, 0]), tf1.constant([1, 0, 0, 0])
        value, update = spec.create_metric_ops({"w": tf1.ones(4)}, labels, predictions)
        session.run(tf1.local_variables_initializer())
        session.run(update)
        return session.run(value)


def test_a_metric_that_takes_no_weights_is_refused_them():
    spec = _learn.MetricSpec(lambda labels, predictions: None, weight_key="w")
    with pytest.raises(TypeError):
        spec.create_metric_ops({"w": 1}, 2, 3)


def test_records_are_parsed_before_their_features(tmp_path):
    path = str(tmp_path / "marked")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(4):
            writer.write(b"#" + example(x=number))
    features = {"x": tf1.FixedLenFeature([], tf.int64)}
    with tf1.Graph().as_default(), tf1.Session() as session:
        batch = tf1.contrib.learn.io.read_batch_features(
            path,
            4,
            features,
            randomize_input=False,
            queue_capacity=9,
            parse_fn=lambda record: tf1.strings.substr(record, 1, 1000),
        )
        session.run(tf1.tables_initializer())
        assert session.run(batch)["x"].tolist() == [0, 1, 2, 3]


def test_estimators_predict_arrays(tmp_path):
    learn = tf1.contrib.learn
    x = np.arange(6, dtype=np.float32).reshape(6, 1)
    columns = learn.infer_real_valued_columns_from_input(x)
    assert columns == [tf1.feature_column.numeric_column("", (1,))]
    made = learn.LinearRegressor(columns, model_dir=str(tmp_path), optimizer="Adam")
    made.fit(x, 2 * x, steps=1)
    names = [row.keys() for row in made.predict(x=x, batch_size=4, outputs=["predictions"])]
    assert names == [{"predictions"}] * 6
    read = tf1.estimator.inputs.numpy_input_fn({"": x}, num_epochs=1, shuffle=False)
    for found in (made.predict(read), made.predict(input_fn=read), made.predict(x)):
        rows = [row["predictions"].tolist() for row in found]
        assert rows == [row["predictions"].tolist() for row in made.predict(x, as_iterable=False)]
    wrapped = learn.SKCompat(made).fit(x, 2 * x, steps=1)
    assert wrapped.predict(x)[learn.PredictionKey.SCORES].shape == (6,)
    assert wrapped.score(x, 2 * x).keys() >= {"loss"}


@pytest.mark.parametrize("label_keys", [None, ["no", "yes"], ["no", "yes", "perhaps"]])
@pytest.mark.parametrize("kind", ["LinearClassifier", "DNNClassifier"])
def test_classes_are_numbers_or_keys(kind, label_keys, tmp_path):
    learn = tf1.contrib.learn
    x = np.linspace(0, 1, 12, dtype=np.float32)[:, None]
    keys = np.array(label_keys or [0, 1])
    columns = learn.infer_real_valued_columns_from_input(x)
    options = {"n_classes": len(keys), "label_keys": label_keys, "model_dir": str(tmp_path)}
    options |= {"hidden_units": [2]} if kind.startswith("DNN") else {}
    made = getattr(learn, kind)(feature_columns=columns, **options)
    y = keys[(x[:, 0] > 0.5).astype(int)]
    found = learn.SKCompat(made.fit(x, y, steps=1)).predict(x)["classes"]
    right = np.mean([key.decode() if label_keys else key for key in found] == y)
    assert (found.shape, found.dtype.kind) == ((12,), "S" if label_keys else "i")
    own = {} if label_keys else {"own": learn.MetricSpec(tf1.metrics.accuracy, "classes")}
    metrics = made.evaluate(x, y, metrics=own)
    assert [metrics[name] for name in ("accuracy", *own)] == pytest.approx([right] * (1 + len(own)))


def test_batches_of_the_same_size():
    data = tf1.data.Dataset.from_tensor_slices(np.arange(5))
    contrib_data = tf1.contrib.data
    whole = data.apply(contrib_data.batch_and_drop_remainder(2))
    padded = data.apply(contrib_data.padded_batch_and_drop_remainder(2, ()))
    for batches in (whole, padded):
        assert [batch.tolist() for batch in batches.as_numpy_iterator()] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("sparse", "mean"), [(True, [1.5, 0.0]), (False, [1.0, 0.0])])
def test_a_bag_of_words(sparse, mean):
    with tf1.Graph().as_default(), tf1.Session() as session:
        table = tf1.constant_initializer([[0.0], [1.0], [2.0]])
        found = tf1.contrib.layers.bow_encoder(
            tf1.constant([[1, 2, 0], [0, 0, 0]]), 3, 1, sparse, initializer=table
        )
        session.run(tf1.global_variables_initializer())
        assert session.run(found)[:, 0].tolist() == mean


def test_embeddings_of_a_sequence():
    with tf1.Graph().as_default(), tf1.Session() as session:
        ones = tf1.ones_initializer()
        found = tf1.contrib.layers.embed_sequence(
            [[1, 2, 0]], 3, 2, initializer=ones, scope="words"
        )
        assert [variable.op.name for variable in tf1.global_variables()] == ["words/embeddings"]
        session.run(tf1.global_variables_initializer())
        assert session.run(found).tolist() == [[[1.0, 1.0]] * 3]


def test_shapes_are_those_of_the_program(tmp_path):
    found = []

    def model_fn(features, labels, mode):
        found.append(features.shape[1])
        step = tf1.train.get_or_create_global_step()
        return v1.EstimatorSpec(mode, loss=tf1.constant(0.0), train_op=tf1.assign_add(step, 1))

    def input_fn():
        return tf.data.Dataset.from_tensors((tf.ones([2, 3]), tf.ones([2])))

    v1.Estimator(model_fn, str(tmp_path)).train(input_fn, steps=1)
    assert found[0].value == 3
    assert isinstance(tf.TensorShape([1])[0], int)  # as it was


@needs_slim
def test_a_program_of_the_blog_as_a_script(tmp_path):
    run_script("numerals", tmp_path, f"--logs={tmp_path / 'logs'}", "--steps=30")
    assert steps_of(tmp_path / "logs") == 30


@needs_slim
@pytest.mark.slow
def test_a_program_of_the_blog_as_a_module_file(tmp_path):
    load(lambda: None, [""])  # forgets the flags of a script before
    config = {"steps": 90, "rate": 0.01}
    fn_args = run_module_file(ported(FILES / "numerals.py", tmp_path), custom_config=config)
    assert steps_of(fn_args.model_run_dir) == 90
    served = tf.saved_model.load(fn_args.serving_model_dir).signatures["serving_default"]
    assert served(features=tf.zeros([2, 8, 8, 1]))["output"].shape == [2]


@needs_slim
def test_an_experiment_on_csv_files(tmp_path, caplog):
    caplog.set_level("INFO")
    row = "{},{},clerk,Ulm,<=50K\n{},20,judge,Jena,>50K\n"
    rows = "".join(row.format(20 + i, 20 + i, 40 + i) for i in range(20))
    for name in ("train-1.csv", "train-2.csv", "eval.csv"):
        (tmp_path / name).write_text("age,hours,occupation,town,income\n" + rows)
    files = ["--train-files", tmp_path / "train-*.csv", "--eval-files", tmp_path / "eval.csv"]
    run_script("incomes", tmp_path, *files, "--job-dir", tmp_path / "job", "--train-steps", 30)
    assert "fix_global_step_increment_bug=True): the argument is ignored" in caplog.text
    assert steps_of(tmp_path / "job") == 30
    signature = served(tmp_path / "job" / "export" / "Servo")
    assert set(signature.structured_input_signature[1]) == {"age", "hours", "occupation", "town"}


@needs_slim
def test_a_model_function_with_targets(tmp_path):
    ride = example(miles=2.0, tips=1.0, company="blue")
    with tf.io.TFRecordWriter(str(tmp_path / "rides.gz"), "GZIP") as writer:
        for _ in range(40):
            writer.write(ride)
    run_script("rides", tmp_path, tmp_path / "rides.gz", tmp_path / "run")
    assert steps_of(tmp_path / "run") == 20
    predicted = served(tmp_path / "run" / "export" / "Servo")(tf.constant([ride]))
    assert predicted["tips"].shape == [1, 1]


@pytest.mark.usefixtures("eager_again")
def test_an_estimator_of_tensorflow_2s_first_year(tmp_path):
    (tmp_path / "species.txt").write_text("red\nwhite\n")
    arguments = [f"--model_dir={tmp_path / 'run'}", f"--vocabulary={tmp_path / 'species.txt'}"]
    run_script("orchids", tmp_path, *arguments)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        [export] = (tmp_path / "run" / "export" / "orchids").iterdir()
        model = tf.compat.v1.saved_model.load(session, ["serve"], str(export))
        assert "key" in model.signature_def["predict"].outputs
