"""run_fn="package.module.function": what is packed, and what is left to the worker."""

import importlib.util
import os
from pathlib import Path

import pytest

from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code import UserCode, bundle_function, bundle_module_file
from tests.user_code.conftest import names, run


@pytest.fixture
def source(project, import_path) -> Path:
    """A folder on the import path with a package, a module and a helper of both."""
    files = {
        "userpackage/__init__.py": "",
        "userpackage/models/__init__.py": "",
        "userpackage/models/dense.py": """
from ..sizes import read
from userhelper import VALUE

def train(fn_args):
    return read(), VALUE

def fail(fn_args):
    raise RuntimeError("no")
""",
        "userpackage/sizes.py": """
from importlib.resources import files

def read():
    return files("userpackage").joinpath("sizes.txt").read_text()
""",
        "userpackage/sizes.txt": "3",
        "userhelper.py": "VALUE = 4\n",
        "usermodule.py": "import userhelper\ndef train(fn_args):\n    return userhelper.VALUE\n",
        "neighbour.py": "",
    }
    for name, text in files.items():
        project.write(name, text)
    import_path(project.folder)
    return project.folder


PACKAGE_FILES = [
    *("userhelper.py", "userpackage/__init__.py", "userpackage/models/__init__.py"),
    *("userpackage/models/dense.py", "userpackage/sizes.py", "userpackage/sizes.txt"),
]


@pytest.mark.parametrize("is_namespace", [False, True])
def test_package(source, tmp_path, is_namespace):
    markers = [name for name in PACKAGE_FILES if name.endswith("__init__.py")]
    for name in markers if is_namespace else []:
        (source / name).unlink()
    code = bundle_function("userpackage.models.dense.train", str(tmp_path / "bundles"))
    assert (code.module, code.function) == ("userpackage.models.dense", "train")
    assert names(code) == [name for name in PACKAGE_FILES if (source / name).exists()]
    assert run(code) == ("3", 4)


@pytest.mark.parametrize("module", ["usermodule", "userpackage.models.dense"])
def test_missing_function(source, tmp_path, module):
    with pytest.raises(ModuleFileError) as error:
        bundle_function(f"{module}.trian", str(tmp_path / "bundles"))
    path = module.replace(".", "/")
    assert f"{source}/{path}.py does not define 'trian' (did you mean 'train'?)" in str(error.value)


def test_missing_module(source, tmp_path):
    code = bundle_function("userpackage.models.desne.train", str(tmp_path / "bundles"))
    expected = (
        r"No module named 'userpackage\.models\.desne'[^$]* no such module: check the spelling"
    )
    with pytest.raises(ModuleFileError, match=expected):
        run(code)


def test_module_written_a_moment_ago(source, tmp_path):
    assert importlib.util.find_spec("userlate") is None  # Python now remembers the folder's content
    time_of_folder = source.stat().st_mtime_ns
    (source / "userlate.py").write_text("def train(fn_args):\n    return 9")
    os.utime(source, ns=(time_of_folder, time_of_folder))
    assert run(bundle_function("userlate.train", str(tmp_path / "bundles"))) == 9


@pytest.mark.parametrize("dotted", ["pluggy.HookspecMarker", "json.loads", "not_there.module.fn"])
def test_what_is_installed_or_elsewhere_is_not_packed(tmp_path, dotted):
    code = bundle_function(dotted, str(tmp_path / "bundles"))
    module, _, function = dotted.rpartition(".")
    assert code == UserCode(module, function)
    assert not (tmp_path / "bundles").exists()


@pytest.mark.parametrize("dotted", ["run_fn", "", "a..b", "package/module.run_fn", ".run_fn"])
def test_not_a_dotted_name(tmp_path, dotted):
    expected = rf'^run_fn must be written "package.module.function", found {dotted!r}\.$'
    with pytest.raises(ModuleFileError, match=expected):
        bundle_function(dotted, str(tmp_path))


def test_code_that_no_worker_could_import(tmp_path):
    with pytest.raises(ModuleFileError, match="main script or notebook, which a worker cannot"):
        bundle_function("__main__.run_fn", str(tmp_path))
    with pytest.raises(ModuleFileError, match="inside a zip: unpack that"):
        bundle_module_file(f"{tmp_path}/code.zip/trainer.py", str(tmp_path))
