"""Remote paths, and what TensorFlow asks of the user's module while it trains."""

import pytest
import tensorflow as tf

from generic_trainer.errors import ModuleFileError, TrainingError
from generic_trainer.user_code import bundle_module_file
from tests.user_code.conftest import run

MODULE = """
import layers
def run_fn(fn_args):
    import helper
    if fn_args == "fail":
        raise ValueError
    return helper.VALUE, layers.read()
"""
FILES = {
    "trainer.py": MODULE,
    "helper.py": "VALUE = 1",
    "layers/__init__.py": """
import pathlib
def read():
    return pathlib.Path(__file__).with_name("data.txt").read_text()
""",
    "layers/data.txt": "text",
    "neighbour.py": "",
}


def put(uri: str, text: str | bytes) -> None:
    tf.io.gfile.makedirs(uri.rpartition("/")[0])
    if tf.io.gfile.exists(uri):
        tf.io.gfile.remove(uri)  # this file system appends to what is there
    with tf.io.gfile.GFile(uri, "wb") as file:
        file.write(text)


@pytest.fixture
def remote(tmp_path) -> str:
    """A remote folder with user code, in TensorFlow's in-memory file system."""
    folder = f"ram://{tmp_path.name}"
    for name, text in FILES.items():
        put(f"{folder}/source/{name}", text)
    return folder


def test_module_file_and_bundle_are_remote_and_edits_are_seen(remote):
    path = f"{remote}/source/trainer.py"
    first = bundle_module_file(path, f"{remote}/bundles")
    assert first.bundle == f"{remote}/bundles/trainer-{first.digest[:16]}.zip"
    assert tf.io.gfile.listdir(f"{remote}/bundles") == [first.bundle.rpartition("/")[2]]
    assert bundle_module_file(path, f"{remote}/bundles") == first
    put(f"{remote}/source/helper.py", "VALUE = 2")
    second = bundle_module_file(path, f"{remote}/bundles")
    assert [run(first), run(second)] == [(1, "text"), (2, "text")]
    for missing in ("nowhere/trainer.py", "source/missing.py"):
        with pytest.raises(ModuleFileError, match=f"file {remote}/{missing}: it does not exist"):
            bundle_module_file(f"{remote}/{missing}", f"{remote}/bundles")


AUTOGRAPH = """
import tensorflow as tf

@tf.function
def total(values):
    result = 0
    for value in values:
        if value > 1:
            result += value
    return result

def run_fn(fn_args):
    return int(total(tf.constant([1, 2, 3])))
"""


@pytest.mark.parametrize("then", ["left", "edited", "removed"])
def test_autograph_reads_what_was_packed(project, then):
    # AutoGraph takes a conversion from its cache if the bytecode is the same: hence the new name.
    path = project.write("trainer.py", AUTOGRAPH.replace("result", f"result_{then}"))
    code = project.bundle()
    if then == "edited":
        path.write_text("# moved down\n" * 3 + AUTOGRAPH.replace("> 1", "> 100"))
    elif then == "removed":
        path.unlink()
    assert run(code) == 5


def test_error_in_a_graph_function_quotes_the_users_line(project):
    project.write("trainer.py", AUTOGRAPH.replace("result += value", "result += value.missing"))
    with pytest.raises(TrainingError) as error:
        project.run()
    message = str(error.value)
    assert f'File "{project.folder}/trainer.py", line 9, in total' in message
    assert "result += value.missing" in message
