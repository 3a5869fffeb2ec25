"""Errors of the user's code, as `generic-trainer run` prints them: cause, line and node."""

from pathlib import Path

import pytest

from generic_trainer import cli
from tests import helpers

MODEL = """
def fit(layers, x, y, loss="mse"):
    model = keras.Sequential(layers)
    model.compile("sgd", loss)
    model.fit(x, y, verbose=0)
"""
# Case → source, with the failing line marked by `# here`; parts of the message.
CASES = {
    "label out of range": (
        MODEL.replace("verbose=0)", "verbose=0)  # here")
        + """
def run_fn(fn_args):
    y = tf.range(8) % 4
    fit([keras.layers.Dense(3)], tf.zeros([8, 4]), y, "sparse_categorical_crossentropy")
""",
        ["Received a label value of 3 which is outside the valid range of [0, 3)", "Node: "],
    ),
    "cast of strings": (
        """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        numbers = tf.cast(x, tf.float32)  # here
        return self.dense(numbers)

def run_fn(fn_args):
    model = Model()
    model.compile("sgd", "mse")
    model.fit(tf.constant([["a"]] * 8), tf.zeros([8, 1]), verbose=0)
""",
        ["Cast string to float is not supported", "Node: ", "Cast"],
    ),
    "node of a layer": (
        """
class Lookup(keras.layers.Layer):
    def call(self, x):
        return tf.gather(tf.ones([3, 1]), tf.cast(x[:, 0], tf.int32) + 7)  # here
"""
        + MODEL
        + """
def run_fn(fn_args):
    fit([keras.Input([4]), Lookup(), keras.layers.Dense(1)], tf.zeros([8, 4]), tf.zeros([8, 1]))
""",
        ["= 7 is not in [0, 3)", "Node: ", "GatherV2"],
    ),
    "shape of a Dense layer": (
        MODEL.replace("verbose=0)", "verbose=0)  # here")
        + """
def run_fn(fn_args):
    layers = [keras.Input([5]), keras.layers.Dense(1)]
    fit(layers, tf.zeros([8, 4]), tf.zeros([8, 1]))
""",
        ["(None, 4)", "5"],
    ),
    "shape in a layer": (
        """
class Mine(keras.layers.Layer):
    def call(self, x):
        return tf.matmul(x, tf.ones([5, 1]))  # here
"""
        + MODEL
        + """
def run_fn(fn_args):
    fit([Mine(), keras.layers.Dense(1)], tf.zeros([8, 4]), tf.zeros([8, 1]))
""",
        ["Dimensions must be equal, but are 4 and 5"],
    ),
    "dtype in map": (
        """
def scale(x):
    return x * tf.constant(2)  # here

def run_fn(fn_args):
    tf.data.Dataset.from_tensor_slices(tf.zeros([8])).map(scale)
""",
        ["type int32 that does not match type float32"],
    ),
    "value in map": (
        """
def parse(text):
    return tf.strings.to_number(text)

def run_fn(fn_args):
    list(tf.data.Dataset.from_tensor_slices(["1", "x"]).map(parse))  # here
""",
        ["could not correctly convert string: x", "Node: StringToNumber"],
    ),
    "missing file in a py_function": (
        """
def load(path):
    return len(open(path.numpy()).read())  # here

def run_fn(fn_args):
    paths = tf.data.Dataset.from_tensor_slices(["/gone/file.txt"])
    list(paths.map(lambda path: tf.py_function(load, [path], tf.int32)))
""",
        ["FileNotFoundError: [Errno 2] No such file or directory: ", "gone/file.txt", "Node: "],
    ),
    "no memory": (
        """
@tf.function
def ones(n):
    return tf.reduce_sum(tf.ones([n, n, 1000]))  # here

def run_fn(fn_args):
    ones(tf.constant(200_000))
""",
        ["OOM when allocating tensor with shape[200000,200000,1000]", "Node: "],
    ),
    "long text of another error": (
        """
def run_fn(fn_args):
    raise ValueError("the beginning" + 9000 * "x" + "the end")  # here
""",
        ["the beginning", "the end"],
    ),
}
KERAS_3 = {
    "save_format": (
        "model.save(fn_args.serving_model_dir, save_format='tf')",
        ["export_model(", "TF_USE_LEGACY_KERAS=1"],
    ),
    "no extension": ("model.save(fn_args.serving_model_dir)", ["export_model("]),
    "signatures": (
        "model.save(fn_args.serving_model_dir, signatures={})",
        ["export_model(", "TF_USE_LEGACY_KERAS=1"],
    ),
    "options, as a function": (
        "keras.models.save_model(model, fn_args.serving_model_dir, options=None)",
        ["export_model("],
    ),
    "loading a SavedModel": (
        "tf.saved_model.save(model, d); keras.models.load_model(d)",
        ["weights", "tf.saved_model.load(fn_args.base_model)"],
    ),
    "sys.exit after an export": (
        "export(fn_args.serving_model_dir); sys.exit(0)",
        ["also after an export", "\nThe log and the export of the failed run are in "],
    ),
}


def failed_run(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> tuple[str, Path, str]:
    """Returns what a run prints, its module file and its log."""
    helpers.write_examples(tmp_path / "data")
    module_file = helpers.write_module(tmp_path, source)
    words = ["--examples", str(tmp_path / "data"), "--output", str(tmp_path / "runs")]
    assert cli.main(["run", module_file, *words]) != 0
    log = (tmp_path / "runs" / "model_run" / "1.failed" / "training.log").read_text()
    return capsys.readouterr().err.split("generic-trainer run: ")[-1], Path(module_file), log


# The lines differ: AutoGraph takes the same code at the same line for the same function.
@pytest.mark.parametrize("keras", ["import keras", "\nimport tf_keras as keras"])
@pytest.mark.parametrize("case", CASES)
def test_the_error_has_cause_line_and_node(
    case: str, keras: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, parts = CASES[case]
    printed, module_file, log = failed_run(tmp_path, f"{keras}\n{source}", capsys)
    lines = module_file.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.endswith("# here"))
    place = f'File "{module_file}", line {number}, in '
    assert not [part for part in [place, *parts] if part not in printed], printed
    assert "Node: " not in parts or "site-packages" not in printed
    assert len(printed) < 3500
    assert printed.rstrip().endswith(
        f"The log of the failed run is in {tmp_path}/runs/model_run/1.failed"
    )
    assert "Traceback (most recent call last)" in log and parts[0] in log


@pytest.mark.parametrize("case", KERAS_3)
def test_the_remedy_works_in_a_pipeline(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, parts = KERAS_3[case]
    source = f"""
    import keras, sys, tempfile
    def run_fn(fn_args):
        d = tempfile.mkdtemp()
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        {line}
    """
    printed, _, _ = failed_run(tmp_path, source, capsys)
    assert not [part for part in parts if part not in printed], printed
