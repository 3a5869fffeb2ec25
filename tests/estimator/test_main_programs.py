"""Programs of TensorFlow 1 that make tensors, writers and sessions in their main program."""

import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.estimator import tf
from tests.estimator.test_trainer_fn import run, weight_of

# Learns y = 2 x, and writes what it knows in its main program.
PROGRAM = """
from generic_trainer.estimator import tf1 as tf

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_string("folder", "", "where the results go")

def model_fn(features, labels, mode):
    y = features["x"] * tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    if mode == "infer":
        outputs = {"serving_default": tf.estimator.export.PredictOutput({"y": y})}
        return tf.estimator.EstimatorSpec(mode, {"y": y}, export_outputs=outputs)
    loss = tf.losses.mean_squared_error(labels, y)
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def read():
    return tf.data.Dataset.from_tensors(({"x": [[1.0], [2.0]]}, [[2.0], [4.0]])).repeat(30)

def main(argv):
    assert not tf.executing_eagerly()
    x = tf.placeholder(tf.float32, [None, 1], name="x")
    assert x.shape[1].value == 1
    with tf.Session() as session:
        assert session.run(x * 2, {x: [[3.0]]}) == [[6.0]]
    with tf.summary.FileWriter(FLAGS.folder + "/logs") as writer:
        writer.add_graph(tf.get_default_graph())
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1], name="x")])
    model.compile("sgd", "mse")
    estimator = tf.keras.estimator.model_to_estimator(model, model_dir=FLAGS.folder + "/m")
    estimator.train(lambda: read().map(lambda x, y: (x["x"], y)))
    estimator = tf.estimator.Estimator(model_fn, FLAGS.folder + "/model")
    spec = tf.estimator.TrainSpec(read, max_steps=30)
    tf.estimator.train_and_evaluate(estimator, spec, tf.estimator.EvalSpec(read, steps=1))
    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": x})
    estimator.export_saved_model(FLAGS.folder + "/export", receiver)

if __name__ == "__main__":
    tf.app.run()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_app_run_runs_the_main_program_in_a_graph(program: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, program, f"--folder={tmp_path}"], check=True)
    [export] = (tmp_path / "export").iterdir()
    served = tf.saved_model.load(str(export)).signatures["serving_default"]
    assert served(tf.constant([[3.0]]))["y"].numpy() == pytest.approx(6.0, abs=0.01)
    assert list((tmp_path / "logs").iterdir())
    assert list((tmp_path / "m").glob("model.ckpt-30.*"))


@pytest.mark.parametrize("function", ["enable_eager_execution", "enable_v2_behavior"])
def test_a_program_may_ask_for_eager_execution(function: str, tmp_path: Path) -> None:
    path = tmp_path / "eager.py"
    path.write_text(
        "from generic_trainer.estimator import tf1 as tf\n"
        f"tf.{function}()\n"
        "tf.app.run(lambda argv: 0 if tf.executing_eagerly() else 1, ['eager.py'])\n"
    )
    for expected in (0, 1):  # the next program is one without that line
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
        assert (ended.value.code or 0) == expected
        path.write_text(path.read_text().replace(f"tf.{function}()", ""))


def test_a_main_program_of_tensorflow_2_stays_eager() -> None:
    with pytest.raises(SystemExit) as ended:
        tf.compat.v1.app.run(lambda argv: 0 if tf.executing_eagerly() else 1, ["eager.py"])
    assert not ended.value.code


def test_a_program_without_app_run_names_the_line_that_repairs_it(program: Path) -> None:
    program.write_text(PROGRAM.replace("tf.app.run()", "tf.placeholder(tf.float32)"))
    with pytest.raises(ConfigurationError, match=r"tf\.app\.run\(lambda argv: main\(\)\)"):
        runpy.run_path(str(program), run_name="__main__")


@pytest.mark.parametrize(
    "line",
    [
        "tf.compat.v1.summary.FileWriter(fn_args.model_run_dir)",
        "tf.compat.v1.Session().run(tf.constant(1))",
        "tf.compat.v1.train.Saver()",
        "tf.gradients(tf.constant(1.0), [tf.constant(1.0)])",
    ],
)
def test_what_needs_a_graph_is_explained(line: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"with tf\.Graph\(\)\.as_default\(\):"):
        run(tmp_path, f"\ndef trainer_fn(fn_args, schema):\n    {line}\n")


def test_trainer_fn_of_tensorflow_1_runs_in_a_graph(tmp_path: Path) -> None:
    source = """
        from generic_trainer.estimator import tf1

        original = trainer_fn

        def trainer_fn(trainer_fn_args, schema):
            global EXPORTERS
            x = tf1.placeholder(tf1.float32, [None, 1])
            receiver = tf1.estimator.export.build_parsing_serving_input_receiver_fn(
                {"x": tf1.FixedLenFeature(x.shape[1:], x.dtype)}
            )
            EXPORTERS = [tf.estimator.FinalExporter("line", receiver)]
            return original(trainer_fn_args, schema)
    """
    assert weight_of(run(tmp_path, textwrap.dedent(source))) == pytest.approx(2.0, abs=0.01)
