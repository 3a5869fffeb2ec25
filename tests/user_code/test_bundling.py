"""What a bundle holds, and what its digest notices."""

import os
import shutil
from pathlib import Path

import pytest

from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code import bundle_module_file
from tests.user_code.conftest import names

RUN_FN = "def run_fn(fn_args):\n    return 0\n"


def test_only_what_is_imported_is_taken(project):
    project.write("trainer.py", "import helper, os, numpy\n" + RUN_FN)
    project.write("helper.py", "from deeper import value\n")
    project.write("deeper.py", "import helper\nvalue = 1\n")  # circular
    project.write("neighbour.py", "this is not Python")
    project.write("vocabulary.txt", "a b")
    assert names(project.bundle()) == ["deeper.py", "helper.py", "trainer.py"]


def test_every_way_to_import_is_seen(project):
    source = """
    import importlib
    import one.inner as inner
    from two import *
    try:
        import three
    except ImportError:
        three = None
    class Lazy:
        def method(self):
            from four import value
    def run_fn(fn_args):
        importlib.import_module("five")
        __import__("six_.inner")
        importlib.import_module(f"seven.{fn_args}")
        importlib.import_module("eight." + fn_args)
        pkgutil.resolve_name("ten:value")
    """
    project.write("trainer.py", source)
    for name in ("two", "three", "four", "five", "nine", "ten"):
        project.write(f"{name}.py")
    folders = ("one", "six_", "seven", "eight")
    packages = [f"{folder}/{name}.py" for folder in folders for name in ("__init__", "inner")]
    for name in packages:
        project.write(name)
    modules = ["trainer.py", "two.py", "three.py", "four.py", "five.py", "ten.py"]
    assert names(project.bundle()) == sorted(packages + modules)


# Expression of a module that is imported → the files beside the module file that it may mean.
COMPOSED = {
    """import_module("model_" + kind)""": "model_a model_b",
    """import_module(f"model_{kind}")""": "model_a model_b",
    """import_module("model_%s" % kind)""": "model_a model_b",
    """__import__("model_{}".format(kind))""": "model_a model_b",
    """importlib.util.find_spec("model_" + kind)""": "model_a model_b",
    """import pydoc; pydoc.locate(f"model_{kind}.Model")""": "model_a model_b",
    """import pydoc; pydoc.locate(kind)""": "deep model_a model_b notes setup",
    """from pydoc import locate; locate(kind)""": "deep model_a model_b notes setup",
    """kind.finder.locate(kind)""": "",
    """kind.resolve_name(kind)""": "",
    """import_module("model_a")""": "model_a",
    """pydoc.locate("model_a.Model")""": "model_a",
    """pkgutil.resolve_name(f"model_a:{kind}")""": "model_a",
    """import_module(f"{kind}_x")""": "deep model_a model_b notes setup",
    """import_module(name=kind)""": "deep model_a model_b notes setup",
    """list(map(importlib.import_module, [kind]))""": "deep model_a model_b notes setup",
    """import_module("." + kind, "layers")""": "",
    """importlib.util.spec_from_file_location(kind, kind)""": "deep model_a model_b notes setup",
    """runpy.run_path(kind)""": "deep model_a model_b notes setup",
}


@pytest.mark.parametrize("expression", COMPOSED)
def test_modules_whose_names_are_composed_are_taken(project, expression):
    body = f"    import importlib\n    from importlib import import_module\n    {expression}"
    project.write("trainer.py", f"def run_fn(kind):\n{body}\n")
    project.write("model_a.py", "import deep, layers.dense\n")
    project.write("model_b.py", "this is not Python")
    for name in (
        "deep.py",
        "notes.py",
        "setup.py",
        ".hidden.py",
        "a.b.py",
        "random.py",
        "numpy.py",
    ):
        project.write(name)
    for name in ("layers/dense.py", "others/other.py", ".env", "data.csv", "notebook.ipynb"):
        project.write(name)
    taken = {f"{name}.py" for name in [*COMPOSED[expression].split(), "trainer"]}
    if COMPOSED[expression].startswith("model_a"):  # a likely module, with what it imports
        taken |= {"deep.py", "layers/dense.py"}
    assert names(project.bundle()) == sorted(taken)


def test_a_package_composes_the_names_of_its_own_modules(project):
    project.write("trainer.py", "import layers\n" + RUN_FN)
    project.write("layers/__init__.py", "import importlib\nload = importlib.import_module\n")
    project.write("neighbour.py")
    assert names(project.bundle()) == ["layers/__init__.py", "trainer.py"]


# Case → imports of the module file, other files that are taken, files that are not.
TAKEN = {
    "a package, without caches and hidden files, and its imports": (
        "layers",
        {
            "layers/__init__.py": "from . import dense\n",
            "layers/data/table.bin": "\0",
            "layers/dense.py": "import shared\n",
            "layers/template.py": "{{ not Python }}",
            "shared.py": "",
        },
        ["layers/.secret", "layers/.git/config", "layers/__pycache__/a.pyc", "layers/old.pyc"],
    ),
    "a namespace package if it has code and none is installed": (
        "parts.model, images.cat, pytest, numpy",
        {"parts/model.py": "", "parts/sizes.json": "{}"},
        ["images/cat.png", "numpy/script.py"],
    ),
    "neither the standard library nor this package": (
        "random, generic_trainer",
        {},
        ["random.py", "generic_trainer/__init__.py"],
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_exactly_the_needed_files_are_taken(project, case):
    imports, taken, others = TAKEN[case]
    for name, source in {**taken, **dict.fromkeys(others, "x")}.items():
        project.write(name, source)
    project.write("trainer.py", f"import {imports}\n{RUN_FN}")
    assert names(project.bundle()) == sorted([*taken, "trainer.py"])


def test_digest_follows_edits_and_new_names_of_files_that_are_taken(project):
    project.write("trainer.py", "import layers\n" + RUN_FN)
    project.write("layers/__init__.py")
    data = project.write("layers/data.txt", "1")
    project.write("neighbour.py", "VALUE = 1")
    first = project.bundle()
    project.write("neighbour.py", "VALUE = 2")
    assert project.bundle() == first
    project.write("layers/data.txt", "2")
    second = project.bundle()
    data.rename(data.with_name("renamed.txt"))
    assert len({first.digest, second.digest, project.bundle().digest}) == 3


@pytest.mark.parametrize("package", ["project", "{above}.project"])
def test_digest_follows_modules_beside_that_are_imported_as_those_of_a_package(
    project, import_path, package
):
    package = package.format(above=project.folder.parent.name)
    import_path(project.folder.parents[package.count(".")])
    project.write("trainer.py", f"from {package}.rates import RATE\nfrom {package} import layers\n")
    project.write("main.py", "import trainer\ndef run_fn(fn_args):\n    return trainer.RATE\n")
    project.write("rates.py", "from .deeper import RATE")
    project.write("deeper.py", "RATE = 1")
    project.write("layers/dense.py", "from . import neighbour\nSIZE = 1")
    project.write("neighbour.py", "RATE = 1")
    first = project.bundle("main.py")
    assert project.run("main.py") == 1
    project.write("neighbour.py", "RATE = 2")
    project.write("layers/saved/weights.txt", "1 2")  # by a run
    assert project.bundle("main.py") == first
    project.write("layers/dense.py", "SIZE = 2")
    second = project.bundle("main.py")
    project.write("deeper.py", "RATE = 22")
    assert len({first.digest, second.digest, project.bundle("main.py").digest}) == 3


def test_digest_does_not_depend_on_place_and_time(project, tmp_path):
    trainer = project.write("trainer.py", RUN_FN)
    first = project.bundle()
    os.utime(trainer, (0, 0))
    shutil.copytree(project.folder, tmp_path / "copy")
    copy = bundle_module_file(str(tmp_path / "copy" / "trainer.py"), str(project.destination))
    assert copy == first


def test_bundle_is_written_once_unless_it_is_damaged(project):
    project.write("trainer.py", RUN_FN)
    code = project.bundle()
    bundle = Path(code.bundle)
    os.utime(bundle, (0, 0))
    project.bundle()
    assert bundle.stat().st_mtime == 0
    bundle.write_bytes(b"half")
    assert project.bundle() == code
    assert project.run() == 0
    assert [path.name for path in project.destination.iterdir()] == [bundle.name]


ENCODED = [
    b"\xef\xbb\xbfimport helper\r\nNAME = '\xc3\xbc'\r\ndef run_fn(a):\r\n    return NAME\r\n",
    b"# coding: latin-1\nimport helper\nNAME = '\xfc'\ndef run_fn(a):\n    return NAME\n",
]


@pytest.mark.parametrize("source", ENCODED, ids=["byte order mark and CRLF", "encoding cookie"])
def test_encodings(project, source):
    project.write("trainer.py", source, helper="")
    assert names(project.bundle()) == ["helper.py", "trainer.py"]
    assert project.run() == "ü"


def test_links_are_followed_and_loops_are_not(project, tmp_path):
    project.write("real/trainer_of_others.py", "import helper, layers\n" + RUN_FN)
    project.write("layers/__init__.py", "", helper="")
    (project.folder / "trainer.py").symlink_to(project.folder / "real" / "trainer_of_others.py")
    (project.folder / "layers" / "loop").symlink_to(project.folder / "layers")
    (project.folder / "layers" / "broken").symlink_to(project.folder / "nowhere")
    assert names(project.bundle()) == ["helper.py", "layers/__init__.py", "trainer.py"]


NO_MODULES = [
    ("missing.py", "it does not exist"),
    ("folder", "expected a Python file, found a folder"),
    ("trainer.txt", 'expected a name that ends in ".py"'),
    ("trainer.v2.py", "rename it to trainer_v2.py"),
    ("pack/__init__.py", 'run_fn="package.function"'),
    ("random.py", "'random' is a module of Python's standard library; rename the file"),
    ("generic_trainer.py", "'generic_trainer' is this package; rename the file"),
]


@pytest.mark.parametrize(("name", "text"), NO_MODULES)
def test_what_is_no_module_file(project, name, text):
    for path, _ in NO_MODULES[1:]:
        project.write(f"{path}/x.py" if path == "folder" else path, RUN_FN)
    with pytest.raises(ModuleFileError) as error:
        project.bundle(name)
    assert str(error.value).startswith(f"Module file {project.folder}/{name}: ")
    assert text in str(error.value)


def test_all_broken_files_are_reported_at_once(project):
    project.write("trainer.py", "import one, two, three\n" + RUN_FN)
    project.write("one.py", "import os\n\ndef build(units:\n    pass\n")
    project.write("two.py", b"x = 1\x00")
    (project.folder / "three.py").symlink_to("/proc/self/mem")  # opens, and fails when it is read
    with pytest.raises(ModuleFileError) as error:
        project.bundle()
    message = str(error.value)
    assert "3 problems" in message
    assert f'File "{project.folder}/one.py", line 3\n       def build(units:' in message
    assert f"{project.folder}/two.py" in message
    assert f"{project.folder}/three.py cannot be read: [Errno 5]" in message


def test_missing_run_fn_is_found_without_running(project):
    project.write("trainer.py", "raise RuntimeError\ndef runfn(fn_args):\n    pass\n")
    with pytest.raises(ModuleFileError) as error:
        project.bundle()
    expected = f"{project.folder}/trainer.py does not define 'run_fn' (did you mean 'runfn'?), "
    assert expected in str(error.value)
    assert "`def run_fn(fn_args)`" in str(error.value)


DEFINITIONS = [
    "from helper import *",
    "from helper import run_fn",
    "import helper\nrun_fn = helper.run_fn",
    "import helper\nglobals()['run_fn'] = helper.run_fn",
    "import helper\ndef __getattr__(name):\n    return getattr(helper, name)",
    "import helper\ndef f():\n    global run_fn\n    run_fn = helper.run_fn\nf()",
    "import helper, sys\nsys.modules[__name__] = helper",
    "exec('from helper import run_fn')",
]


@pytest.mark.parametrize("source", DEFINITIONS)
def test_run_fn_may_be_defined_in_any_way(project, source):
    project.write("trainer.py", source + "\nimport helper")
    project.write("helper.py", RUN_FN)
    assert project.run() == 0


CONVERTED = """
import tensorflow_model_analysis as tfma

def run_fn(fn_args):
    spec = trainer_fn(fn_args, None)
    finish(spec, fn_args.eval_model_dir)

def finish(spec, folder):
    {}tfma.{}
"""
EXPORT = 'export.export_eval_savedmodel(spec["estimator"], folder, None)'


REMOVED = [
    (EXPORT, r"tfma\.export\.export_eval_savedmodel"),
    ("EvalSharedModel(estimator=spec, export_dir_base=folder)", r"tfma\.EvalSharedModel"),
]


@pytest.mark.parametrize(("call", "name"), REMOVED)
def test_what_model_analysis_no_longer_has_is_found_before_training(tmp_path, call, name):
    path = tmp_path / "converted.py"
    path.write_text(CONVERTED.format("", call))
    with pytest.raises(ModuleFileError, match=rf"line 9 calls {name}\. .*leave the call out"):
        bundle_module_file(str(path), str(tmp_path / "bundles"))


POSSIBLE = [
    ("if folder: ", EXPORT),
    ("return lambda: ", EXPORT),
    ("", "EvalSharedModel(model_path=folder)"),
    ("", "default_eval_shared_model(folder)"),
]


@pytest.mark.parametrize(("before", "call"), POSSIBLE)
def test_calls_that_may_work_or_never_happen_are_packed(tmp_path, before, call):
    path = tmp_path / "converted.py"
    path.write_text(CONVERTED.format(before, call))
    assert bundle_module_file(str(path), str(tmp_path / "bundles")).digest
