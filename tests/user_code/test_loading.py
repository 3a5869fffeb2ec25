"""What the user's code sees while it runs, and what is left afterwards."""

import gc
import importlib
import io
import os
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from generic_trainer._core.flags import forget_flags
from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code import UserCode, _load, user_function
from tests.house import run_python
from tests.user_code.conftest import run

DEFINING = "from absl import flags\nflags.DEFINE_integer('uot', {}, '', short_name='u9')\n"
FLAGGED = """
import helper, layers.deep
from absl.flags import FLAGS
def run_fn(fn_args):
    return FLAGS["uot"].value
"""
HELPED = "import helper\ndef run_fn(fn_args):\n    return helper.V"


def state():
    return list(sys.path), list(sys.path_hooks), dict(os.environ), dict(sys.modules)


def test_lazy_imports_and_data_files(project):
    source = """
    def run_fn(fn_args):
        import importlib
        from layers.deep import read
        return read(), importlib.import_module("helper").VALUE
    """
    project.write("trainer.py", source, helper="VALUE = 1")
    project.write("layers/__init__.py")
    source = """
    import importlib.resources
    import pathlib
    import pkgutil

    def read():
        beside = pathlib.Path(__file__).with_name("data.txt").read_text()
        resource = importlib.resources.files(__name__).joinpath("data.txt").read_text()
        return beside, resource, pkgutil.get_data(__name__, "data.txt")
    """
    project.write("layers/deep/__init__.py", source)
    project.write("layers/deep/data.txt", "text")
    assert project.run() == (("text", "text", b"text"), 1)


def test_a_second_run_of_the_same_source_has_the_same_code(project):
    # By code objects TensorFlow keeps what it has traced: new ones in each run fill the memory.
    project.write("trainer.py", "def run_fn(a):\n    return run_fn.__code__, globals()")
    (first, names), (second, others) = project.run(), project.run()
    assert first is second
    assert names is not others


def test_second_run_sees_what_is_imported_from_a_folder_of_the_bundle(project):
    source = """
    import os, sys
    import layers
    sys.path.insert(0, os.path.join(os.path.dirname(layers.__file__), "vendored"))
    def run_fn(fn_args):
        import vendored_module
        return vendored_module.V
    """
    project.write("trainer.py", source)
    project.write("layers/__init__.py")
    project.write("layers/vendored/vendored_module.py", "V = 1")
    assert project.run() == 1
    assert "vendored_module" not in sys.modules
    project.write("layers/vendored/vendored_module.py", "V = 2")
    assert project.run() == 2


@pytest.mark.parametrize("place", ["trainer", "helper", "layers/deep"])
def test_each_run_has_the_flags_of_absl_that_its_modules_define(project, place):
    flags = pytest.importorskip("absl.flags").FLAGS
    before = list(flags)
    for default in (4, 8):
        project.write("trainer.py", FLAGGED, helper="")
        project.write("layers/__init__.py")
        project.write("layers/deep.py")
        with (project.folder / f"{place}.py").open("a") as file:
            file.write(DEFINING.format(default))
        assert project.run() == default
        assert list(flags) == before


@pytest.mark.parametrize("imports", [1, 2])
def test_flags_of_a_module_that_gives_way_are_put_back(project, import_path, tmp_path, imports):
    flags = pytest.importorskip("absl.flags").FLAGS
    (tmp_path / "trainer.py").write_text(DEFINING.format(1))
    import_path(tmp_path)
    module = importlib.import_module("trainer")
    try:
        if imports > 1:  # the flags stay those of the first
            del sys.modules["trainer"]
            module = importlib.import_module("trainer")
        project.write("trainer.py", DEFINING.format(2) + FLAGGED, helper="")
        project.write("layers/__init__.py")
        project.write("layers/deep.py")
        assert project.run() == 2
        assert flags["uot"].value == flags["u9"].value == 1
        assert flags.find_module_defining_flag("uot") == "trainer"
        assert flags.find_module_id_defining_flag("uot") == id(module)
    finally:
        forget_flags(["trainer"])


def test_the_bundle_runs_and_not_what_was_edited_since(project, import_path):
    project.write("trainer.py", HELPED, helper="V = 1")
    import_path(project.folder)  # as when the pipeline's script lies in the same folder
    code = project.bundle()
    project.write("helper.py", "V = 2")
    assert run(code) == 1


@pytest.mark.parametrize("elsewhere", ["utils.py", "utils/__init__.py"])
def test_a_folder_of_the_bundle_comes_before_a_module_elsewhere(
    project, import_path, tmp_path, elsewhere
):
    project.write("trainer.py", "import utils.scale\ndef run_fn(a):\n    return utils.scale.V")
    project.write("utils/scale.py", "V = 1")
    project.write(f"../elsewhere/{elsewhere}")
    project.write("../elsewhere/utils/scale.py", "V = 2")
    import_path(tmp_path / "elsewhere")
    assert project.run() == 1


def test_everything_is_put_back(project, import_path, tmp_path):
    (tmp_path / "helper.py").write_text("V = 'of the pipeline'")
    import_path(tmp_path)
    import helper

    source = """
    import os, sys
    import helper
    sys.path.append(os.path.dirname(__file__))
    os.environ["PYTHONPATH"] = "changed"
    def run_fn(fn_args):
        return helper.V, os.path.dirname(__file__)
    """
    project.write("trainer.py", source, helper="V = 'of the trainer'")
    code = project.bundle()
    before = state()
    value, folder = run(code)
    assert value == "of the trainer"
    assert state() == before
    assert sys.modules["helper"] is helper
    assert not os.path.exists(folder)
    assert not [path for path in sys.path_importer_cache if path.startswith(folder)]


def test_child_processes_can_import(project):
    source = """
    import subprocess, sys
    def run_fn(fn_args):
        command = [sys.executable, "-c", "import helper; print(helper.V)"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    import helper
    """
    project.write("trainer.py", source, helper="V = 5")
    assert project.run() == "5\n"


def test_helper_gives_way_to_an_installed_module(project, caplog):
    project.write("trainer.py", "import pluggy\ndef run_fn(a):\n    return pluggy.__file__")
    project.write("pluggy.py", "raise RuntimeError")
    import pluggy

    assert project.run() == pluggy.__file__
    (record,) = caplog.records
    assert "'pluggy' beside 'trainer' gives way" in record.getMessage()
    assert sys.modules["pluggy"] is pluggy


def test_contexts_nest_in_one_thread(project):
    project.write("one.py", HELPED, helper="V = 1")
    project.write("sub/two.py", HELPED)
    project.write("sub/helper.py", "V = 2")
    with user_function(project.bundle("one.py")) as outer:
        with user_function(project.bundle("sub/two.py")) as inner:
            assert inner(None) == 2
            import helper

            assert helper.V == 2
        assert outer(None) == 1
        import helper

        assert helper.V == 1
    assert "helper" not in sys.modules


def test_a_second_thread_waits(project, caplog):
    caplog.set_level("INFO", logger="generic_trainer")
    project.write("trainer.py", HELPED, helper="V = 1")
    first = project.bundle()
    project.write("helper.py", "V = 2")
    second = project.bundle()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(run(second)))
    with user_function(first) as run_fn:
        thread.start()
        while not caplog.records:  # the thread says so before it waits
            thread.join(0.01)
        import helper

        assert (run_fn(None), helper.V, seen) == (1, 1, [])
    thread.join()
    assert seen == [2]


@pytest.mark.parametrize("damage", [None, slice(0, 100), slice(0, 0), slice(40, None)])
def test_a_missing_or_damaged_bundle_is_named(project, damage):
    project.write("trainer.py", "def run_fn(fn_args):\n    pass\n" + "# filler\n" * 1000)
    code = project.bundle()
    bundle = Path(code.bundle)
    content = bundle.read_bytes()
    bundle.unlink()
    if damage is not None:
        bundle.write_bytes(content[damage])
    with pytest.raises(ModuleFileError) as error:
        run(code)
    assert f"The bundle of module 'trainer', {code.bundle}, cannot be read" in str(error.value)
    assert "Run the pipeline definition again" in str(error.value)


def damaged(compression: int) -> bytes:
    content = zipped({"trainer.py": "def run_fn(fn_args):\n    pass\n" * 99}, compression)
    start = content.index(b"trainer.py") + 20
    return content[:start] + bytes(40) + content[start + 40 :]


def zipped(files: dict[str, str], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


GOOD = zipped({"trainer.py": "def run_fn(fn_args):\n    pass\n"})
HEAD, DIRECTORY = GOOD.index(b"PK\x03\x04"), GOOD.index(b"PK\x01\x02")


def with_byte(content: bytes, position: int, byte: int) -> bytes:
    return content[:position] + bytes([byte]) + content[position + 1 :]


HOSTILE = [
    (zipped({"a": "", "a/b.py": ""}), "cannot be unpacked into "),
    (zipped({"a" * 300: "", "trainer.py": ""}), "cannot be unpacked into .*name too long"),
    (damaged(zipfile.ZIP_LZMA), "cannot be read: "),
    (damaged(zipfile.ZIP_DEFLATED), "cannot be read: "),
    (with_byte(with_byte(GOOD, HEAD + 8, 77), DIRECTORY + 10, 77), "not supported"),
    (with_byte(with_byte(GOOD, HEAD + 6, 1), DIRECTORY + 8, 1), "encrypted"),
]


@pytest.mark.parametrize(("content", "told"), HOSTILE)
def test_hostile_bundle(tmp_path, content, told):
    path = tmp_path / "trainer.zip"
    path.write_bytes(content)
    with pytest.raises(ModuleFileError, match=told) as caught:
        run(UserCode("trainer", bundle=str(path)))
    assert caught.value.path == str(path)


@pytest.mark.parametrize("name", ["../trainer.py", "{}/trainer.py", "a/../../trainer.py"])
def test_a_bundle_writes_nothing_outside(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    path = tmp_path / "trainer.zip"
    path.write_bytes(zipped({name.format(tmp_path): "def run_fn(fn_args): pass"}))
    with pytest.raises(ModuleFileError, match="No module named 'trainer'"):
        run(UserCode("trainer", bundle=str(path)))
    assert not list(tmp_path.rglob("trainer.py"))


def test_exchanged_bundle(project):
    project.write("trainer.py", "def run_fn(fn_args):\n    return 1")
    first = project.bundle()
    project.write("trainer.py", "def run_fn(fn_args):\n    return 2")
    Path(project.bundle().bundle).replace(first.bundle)
    with pytest.raises(ModuleFileError, match=f"expected the digest {first.digest}, found"):
        run(first)


def test_installed_module_needs_no_bundle():
    code = UserCode("posixpath", "basename")
    with user_function(code) as function:
        assert function("/a/b") == "b"


def test_local_code_is_packed_and_loaded_without_tensorflow(project):
    project.write("trainer.py", HELPED, helper="V = 7")
    script = f"""
import sys
from generic_trainer.user_code import *
code = bundle_module_file({str(project.folder / "trainer.py")!r}, {str(project.destination)!r})
with user_function(code) as run_fn:
    assert call_user_function(run_fn, None, code) == 7
assert "tensorflow" not in sys.modules and "tfx" not in sys.modules
"""
    run_python("-c", script)


def test_other_threads_may_import_while_modules_are_looked_up(project, monkeypatch):
    project.write("trainer.py", "def run_fn(fn_args):\n    pass")
    top_level = _load.top_level

    def top_level_while_another_thread_imports(name: str) -> str:
        sys.modules[f"imported_meanwhile_{len(sys.modules)}"] = sys
        return top_level(name)

    with user_function(project.bundle()):
        monkeypatch.setattr(_load, "top_level", top_level_while_another_thread_imports)
        assert [module.__name__ for module in _load.loaded_modules()] == ["trainer"]
    for name in [name for name in sys.modules if name.startswith("imported_meanwhile_")]:
        del sys.modules[name]


def test_other_threads_may_import_while_modules_are_removed(project):
    project.write("trainer.py", "def run_fn(fn_args):\n    pass")

    def import_meanwhile(phase: str, info: dict[str, int]) -> None:
        sys.modules[f"imported_meanwhile_{len(sys.modules)}"] = sys

    thresholds = gc.get_threshold()
    # More than there are spare tuples in Python: making another one may collect garbage.
    sys.modules.update((f"imported_meanwhile_{index}", sys) for index in range(-5000, 0))
    try:
        with user_function(project.bundle()):
            gc.callbacks.append(import_meanwhile)
            gc.set_threshold(1)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(import_meanwhile)
    assert "trainer" not in sys.modules
    for name in [name for name in sys.modules if name.startswith("imported_meanwhile_")]:
        del sys.modules[name]
