"""What the user's code sees while it runs, and what is left afterwards."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code import UserCode, user_function
from tests.user_code.conftest import run


def state():
    return list(sys.path), list(sys.path_hooks), dict(os.environ), dict(sys.modules)


def test_module_has_the_name_of_its_file(project):
    project.write("penguin.py", "def run_fn(fn_args):\n    return __name__, run_fn.__module__")
    assert project.run("penguin.py") == ("penguin", "penguin")


def test_run_fn_gets_its_argument(project):
    project.write("trainer.py", "def run_fn(fn_args):\n    return fn_args")
    with user_function(project.bundle()) as run_fn:
        assert run_fn(42) == 42


def test_lazy_imports_and_data_files(project):
    project.write(
        "trainer.py",
        """
        def run_fn(fn_args):
            import importlib
            from layers.deep import read
            return read(), importlib.import_module("helper").VALUE
        """,
    )
    project.write("helper.py", "VALUE = 1")
    project.write("layers/__init__.py")
    project.write(
        "layers/deep/__init__.py",
        """
        import importlib.resources
        import pathlib
        import pkgutil

        def read():
            beside = pathlib.Path(__file__).with_name("data.txt").read_text()
            resource = importlib.resources.files(__name__).joinpath("data.txt").read_text()
            return beside, resource, pkgutil.get_data(__name__, "data.txt")
        """,
    )
    project.write("layers/deep/data.txt", "text")
    assert project.run() == (("text", "text", b"text"), 1)


def test_namespace_package_is_imported(project):
    project.write("trainer.py", "def run_fn(a):\n    import parts.model\n    return parts.model.X")
    project.write("parts/model.py", "from . import size\nX = size.X")
    project.write("parts/size.py", "X = 3")
    assert project.run() == 3


def test_second_run_sees_an_edited_helper(project):
    project.write("trainer.py", "import layers.dense\ndef run_fn(a):\n    return layers.dense.V")
    project.write("layers/__init__.py")
    project.write("layers/dense.py", "V = 1")
    assert project.run() == 1
    project.write("layers/dense.py", "V = 2")
    assert project.run() == 2


def test_a_second_run_of_the_same_source_has_the_same_code(project):
    # By code objects TensorFlow keeps what it has traced: new ones in each run fill the memory.
    project.write("trainer.py", "def run_fn(a):\n    return run_fn.__code__, globals()")
    (first, names), (second, others) = project.run(), project.run()
    assert first is second
    assert names is not others


def test_second_run_sees_what_is_imported_from_a_folder_of_the_bundle(project):
    project.write(
        "trainer.py",
        """
        import os, sys
        import layers
        sys.path.insert(0, os.path.join(os.path.dirname(layers.__file__), "vendored"))
        def run_fn(fn_args):
            import vendored_module
            return vendored_module.V
        """,
    )
    project.write("layers/__init__.py")
    project.write("layers/vendored/vendored_module.py", "V = 1")
    assert project.run() == 1
    assert "vendored_module" not in sys.modules
    project.write("layers/vendored/vendored_module.py", "V = 2")
    assert project.run() == 2


def test_the_bundle_runs_and_not_what_was_edited_since(project, import_path):
    project.write("trainer.py", "import helper\ndef run_fn(a):\n    return helper.V")
    project.write("helper.py", "V = 1")
    import_path(project.folder)  # as when the pipeline's script lies in the same folder
    code = project.bundle()
    project.write("helper.py", "V = 2")
    assert run(code) == 1


def test_everything_is_put_back(project, import_path, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "helper.py").write_text("V = 'of the pipeline'")
    import_path(other)
    import helper

    project.write(
        "trainer.py",
        """
        import os, sys
        import helper
        sys.path.append(os.path.dirname(__file__))
        os.environ["PYTHONPATH"] = "changed"
        def run_fn(fn_args):
            return helper.V, os.path.dirname(__file__)
        """,
    )
    project.write("helper.py", "V = 'of the trainer'")
    code = project.bundle()
    before = state()
    value, folder = run(code)
    assert value == "of the trainer"
    assert state() == before
    assert sys.modules["helper"] is helper
    assert not os.path.exists(folder)
    assert not [path for path in sys.path_importer_cache if path.startswith(folder)]


def test_everything_is_put_back_after_an_error(project):
    project.write("trainer.py", "import helper\nrun_fn = 1 / helper.ZERO")
    project.write("helper.py", "ZERO = 0")
    code = project.bundle()
    before = state()
    with pytest.raises(ModuleFileError, match="ZeroDivisionError"):
        run(code)
    assert state() == before


def test_child_processes_can_import(project):
    project.write(
        "trainer.py",
        """
        import subprocess, sys
        def run_fn(fn_args):
            command = [sys.executable, "-c", "import helper; print(helper.V)"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
        import helper
        """,
    )
    project.write("helper.py", "V = 5")
    assert project.run() == "5\n"


def test_helper_gives_way_to_an_installed_module(project, caplog):
    project.write("trainer.py", "import pluggy\ndef run_fn(a):\n    return pluggy.__file__")
    project.write("pluggy.py", "raise RuntimeError")
    import pluggy

    assert project.run() == pluggy.__file__
    (record,) = caplog.records
    assert "'pluggy' beside 'trainer' gives way" in record.getMessage()
    assert sys.modules["pluggy"] is pluggy


def test_module_file_wins_over_an_installed_module(project):
    import pluggy

    project.write("pluggy.py", "def run_fn(fn_args):\n    return __name__")
    assert project.run("pluggy.py") == "pluggy"
    assert sys.modules["pluggy"] is pluggy


def test_module_file_that_hides_what_it_imports(project):
    project.write("pluggy.py", "import pluggy\nX = pluggy.HookspecMarker\ndef run_fn(a): pass")
    with pytest.raises(ModuleFileError, match=r"hides an installed one .*pluggy.*; rename it"):
        project.run("pluggy.py")


def test_circular_imports(project):
    project.write("trainer.py", "import one\ndef run_fn(a):\n    return one.f()")
    project.write("one.py", "import two\nX = 1\ndef f():\n    return two.g()")
    project.write("two.py", "import one\ndef g():\n    return one.X")
    assert project.run() == 1


def test_optional_import(project):
    project.write(
        "trainer.py",
        """
        try:
            import not_there
        except ImportError:
            not_there = "optional"
        def run_fn(fn_args):
            return not_there
        """,
    )
    assert project.run() == "optional"


def test_contexts_nest_in_one_thread(project):
    project.write("one.py", "import helper\ndef run_fn(a):\n    return helper.V")
    project.write("sub/two.py", "import helper\ndef run_fn(a):\n    return helper.V")
    project.write("helper.py", "V = 1")
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
    project.write("trainer.py", "import helper\ndef run_fn(a):\n    return helper.V")
    project.write("helper.py", "V = 1")
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


def test_missing_bundle(project):
    code = UserCode("trainer", bundle=f"{project.destination}/trainer-0.zip")
    with pytest.raises(ModuleFileError) as error:
        run(code)
    assert f"The bundle of module 'trainer', {code.bundle}, cannot be read" in str(error.value)
    assert "Run the pipeline definition again" in str(error.value)


@pytest.mark.parametrize("damage", [slice(0, 100), slice(0, 0), slice(40, None)])
def test_damaged_bundle(project, damage):
    project.write("trainer.py", "def run_fn(fn_args):\n    pass\n" + "# filler\n" * 1000)
    code = project.bundle()
    bundle = Path(code.bundle)
    bundle.write_bytes(bundle.read_bytes()[damage])
    with pytest.raises(ModuleFileError, match="cannot be read"):
        run(code)


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


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (zipped({"a": "", "a/b.py": ""}), r"files and folders of the same names: \['a'\]"),
        (zipped({"a" * 300: "", "trainer.py": ""}), "cannot be unpacked into .*name too long"),
        (zipped({"../trainer.py": ""}), "outside of itself"),
        (zipped({"/tmp/trainer.py": ""}), "outside of itself"),
        (damaged(zipfile.ZIP_LZMA), "cannot be read: "),
        (damaged(zipfile.ZIP_BZIP2), "cannot be read: "),
        (damaged(zipfile.ZIP_DEFLATED), "cannot be read: "),
        (with_byte(with_byte(GOOD, HEAD + 8, 77), DIRECTORY + 10, 77), "not supported"),
        (with_byte(with_byte(GOOD, HEAD + 6, 1), DIRECTORY + 8, 1), "encrypted"),
        (with_byte(GOOD, DIRECTORY + 27, 0xF0), r"would unpack into 4,026,\d+"),
    ],
)
def test_hostile_bundle(tmp_path, content, told):
    path = tmp_path / "trainer.zip"
    path.write_bytes(content)
    with pytest.raises(ModuleFileError, match=told) as caught:
        run(UserCode("trainer", bundle=str(path)))
    assert caught.value.path == str(path)


@pytest.mark.parametrize("damage", [slice(0, -30), slice(30, None), slice(0, 3)])
def test_module_file_in_a_damaged_zip(project, damage):
    project.write("code.zip", zipped({"trainer.py": "def run_fn(fn_args): pass"})[damage])
    with pytest.raises(ModuleFileError):
        project.bundle("code.zip/trainer.py")


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
    project.write("trainer.py", "import helper\ndef run_fn(fn_args):\n    return helper.V")
    project.write("helper.py", "V = 7")
    script = f"""
import sys
from generic_trainer.user_code import *
code = bundle_module_file({str(project.folder / "trainer.py")!r}, {str(project.destination)!r})
with user_function(code) as run_fn:
    assert call_user_function(run_fn, None, code) == 7
assert "tensorflow" not in sys.modules and "tfx" not in sys.modules
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, cwd=root)
