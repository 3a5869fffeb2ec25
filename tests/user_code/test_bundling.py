"""What a bundle holds, and what its digest notices."""

from __future__ import annotations

import os
import shutil
import warnings
import zipfile
from pathlib import Path

import pytest

from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code import UserCode, bundle_module_file
from generic_trainer.user_code import __all__ as exported

RUN_FN = "def run_fn(fn_args):\n    return 0\n"


def names(code: UserCode) -> list[str]:
    with zipfile.ZipFile(code.bundle) as archive:
        return archive.namelist()


def test_exported_names():
    assert exported == [
        "UserCode",
        "bundle_function",
        "bundle_module_file",
        "call_user_function",
        "checked_function",
        "defines_function",
        "explain_missing",
        "imported_files",
        "imported_packages",
        "is_importing",
        "loaded_modules",
        "path_of_module",
        "user_function",
        "user_module",
    ]


def test_code_is_named_by_plain_strings(project):
    project.write("trainer.py", RUN_FN)
    code = project.bundle()
    assert (code.module, code.function) == ("trainer", "run_fn")
    assert code.bundle == f"{project.destination}/trainer-{code.digest[:16]}.zip"
    assert len(code.digest) == 64


def test_only_what_is_imported_is_taken(project):
    project.write("trainer.py", "import helper, os, numpy\n" + RUN_FN)
    project.write("helper.py", "from deeper import value\n")
    project.write("deeper.py", "import helper\nvalue = 1\n")  # circular
    project.write("neighbour.py", "this is not Python")
    project.write("vocabulary.txt", "a b")
    assert names(project.bundle()) == ["deeper.py", "helper.py", "trainer.py"]


def test_every_way_to_import_is_seen(project):
    project.write(
        "trainer.py",
        """
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
            importlib.import_module(fn_args)
        """,
    )
    for name in ("two", "three", "four", "five", "nine"):
        project.write(f"{name}.py")
    for name in ("one", "six_", "seven", "eight"):
        project.write(f"{name}/__init__.py")
        project.write(f"{name}/inner.py")
    packages = [
        f"{p}/{f}" for p in ("one", "six_", "seven", "eight") for f in ("__init__.py", "inner.py")
    ]
    modules = ["trainer.py", "two.py", "three.py", "four.py", "five.py"]
    assert names(project.bundle()) == sorted(packages + modules)


def test_package_comes_whole_without_caches_and_hidden_files(project):
    project.write("trainer.py", "import layers\n" + RUN_FN)
    project.write("layers/__init__.py", "from . import dense\n")
    project.write("layers/dense.py", "import shared\n")
    project.write("layers/data/vocabulary.txt", "a b")
    project.write("layers/data/table.bin", b"\x00\xff")
    project.write("layers/template.py", "{{ not Python }}")
    project.write("layers/.secret", "x")
    project.write("layers/.git/config", "x")
    project.write("layers/__pycache__/dense.cpython-310.pyc", b"x")
    project.write("layers/old.pyc", b"x")
    project.write("shared.py")
    assert names(project.bundle()) == [
        "layers/__init__.py",
        "layers/data/table.bin",
        "layers/data/vocabulary.txt",
        "layers/dense.py",
        "layers/template.py",
        "shared.py",
        "trainer.py",
    ]


def test_namespace_package_counts_if_it_has_code_and_none_is_installed(project):
    project.write("trainer.py", "import parts.model, images.cat, pytest, numpy\n" + RUN_FN)
    project.write("parts/model.py")
    project.write("parts/sizes.json", "{}")
    project.write("images/cat.png", b"x")
    project.write("numpy/script.py")
    assert names(project.bundle()) == ["parts/model.py", "parts/sizes.json", "trainer.py"]


def test_standard_library_and_this_package_are_never_taken(project):
    project.write("trainer.py", "import random, generic_trainer\n" + RUN_FN)
    project.write("random.py", "raise RuntimeError")
    project.write("generic_trainer/__init__.py", "raise RuntimeError")
    assert names(project.bundle()) == ["trainer.py"]


def test_module_file_in_site_packages_leaves_the_others_there(project, import_path):
    site_packages = project.folder / "site-packages"
    project.write("site-packages/trainer.py", "import userlibrary\n" + RUN_FN)
    project.write("site-packages/userlibrary/__init__.py")
    import_path(site_packages)
    assert names(project.bundle("site-packages/trainer.py")) == ["trainer.py"]


def test_module_file_wins_over_a_package_of_its_name(project):
    project.write("trainer.py", RUN_FN)
    project.write("trainer/__init__.py", "raise RuntimeError")
    assert names(project.bundle()) == ["trainer.py"]
    assert project.run() == 0


def test_digest_follows_an_edited_helper_and_not_a_neighbour(project):
    project.write("trainer.py", "import helper\n" + RUN_FN)
    project.write("helper.py", "VALUE = 1")
    project.write("neighbour.py", "VALUE = 1")
    first = project.bundle()
    project.write("neighbour.py", "VALUE = 2")
    assert project.bundle() == first
    project.write("helper.py", "VALUE = 2")
    assert project.bundle().digest != first.digest


def test_digest_follows_a_data_file_and_a_renamed_one(project):
    project.write("trainer.py", "import layers\n" + RUN_FN)
    project.write("layers/__init__.py")
    data = project.write("layers/data.txt", "1")
    digests = {project.bundle().digest}
    project.write("layers/data.txt", "2")
    digests.add(project.bundle().digest)
    data.rename(data.with_name("renamed.txt"))
    digests.add(project.bundle().digest)
    assert len(digests) == 3


def test_digest_does_not_depend_on_place_and_time(project, tmp_path):
    trainer = project.write("trainer.py", RUN_FN)
    first = project.bundle()
    os.utime(trainer, (0, 0))
    shutil.copytree(project.folder, tmp_path / "copy")
    copy = bundle_module_file(str(tmp_path / "copy" / "trainer.py"), str(project.destination))
    assert copy == first


def test_bundle_is_written_once(project):
    project.write("trainer.py", RUN_FN)
    bundle = Path(project.bundle().bundle)
    os.utime(bundle, (0, 0))
    project.bundle()
    assert bundle.stat().st_mtime == 0
    assert [path.name for path in project.destination.iterdir()] == [bundle.name]


def test_damaged_bundle_is_written_anew(project):
    project.write("trainer.py", RUN_FN)
    code = project.bundle()
    Path(code.bundle).write_bytes(b"half")
    assert project.bundle() == code
    assert project.run() == 0


def test_relative_path(project, monkeypatch):
    project.write("trainer.py", RUN_FN)
    monkeypatch.chdir(project.folder)
    code = bundle_module_file("trainer.py", "bundles")
    assert code.bundle.startswith(f"{project.folder}/bundles/trainer-")


def test_spaces_and_unicode_in_paths(project):
    project.write("mein Übungs ordner/trainer-3 ü.py", "import größe\n" + RUN_FN)
    project.write("mein Übungs ordner/größe.py")
    code = project.bundle("mein Übungs ordner/trainer-3 ü.py")
    assert code.module == "trainer-3 ü"
    assert names(code) == ["größe.py", "trainer-3 ü.py"]
    assert project.run("mein Übungs ordner/trainer-3 ü.py") == 0


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbfimport helper\r\nNAME = '\xc3\xbc'\r\ndef run_fn(a):\r\n    return NAME\r\n",
        b"# coding: latin-1\nimport helper\nNAME = '\xfc'\ndef run_fn(a):\n    return NAME\n",
    ],
    ids=["byte order mark and CRLF", "encoding cookie"],
)
def test_encodings(project, source):
    project.write("trainer.py", source)
    project.write("helper.py")
    assert names(project.bundle()) == ["helper.py", "trainer.py"]
    assert project.run() == "ü"


def test_links_are_followed_and_loops_are_not(project, tmp_path):
    project.write("real/trainer_of_others.py", "import helper, layers\n" + RUN_FN)
    project.write("layers/__init__.py")
    project.write("helper.py")
    (project.folder / "trainer.py").symlink_to(project.folder / "real" / "trainer_of_others.py")
    (project.folder / "layers" / "loop").symlink_to(project.folder / "layers")
    (project.folder / "layers" / "broken").symlink_to(project.folder / "nowhere")
    assert names(project.bundle()) == ["helper.py", "layers/__init__.py", "trainer.py"]


def test_large_data_is_warned_about(project, caplog):
    project.write("trainer.py", "import layers\n" + RUN_FN)
    project.write("layers/__init__.py")
    project.write("layers/embeddings.bin", bytes(60 * 2**20))
    project.bundle()
    (record,) = caplog.records
    assert "60 MiB" in record.getMessage()
    assert "layers/embeddings.bin" in record.getMessage()
    assert "input artifact" in record.getMessage()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("missing.py", "it does not exist"),
        ("folder", "expected a Python file, found a folder"),
        ("trainer.txt", 'expected a name that ends in ".py"'),
        ("trainer.v2.py", "rename it to trainer_v2.py"),
        ("pack/__init__.py", 'run_fn="package.function"'),
        ("random.py", "'random' is a module of Python's standard library; rename the file"),
    ],
)
def test_what_is_no_module_file(project, name, text):
    for existing in (
        "trainer.txt",
        "trainer.v2.py",
        "random.py",
        "folder/x.py",
        "pack/__init__.py",
    ):
        project.write(existing, RUN_FN)
    with pytest.raises(ModuleFileError) as error:
        project.bundle(name)
    assert str(error.value).startswith(f"Module file {project.folder}/{name}: ")
    assert text in str(error.value)


def test_empty_path():
    with pytest.raises(ModuleFileError, match="expected a Python file"):
        bundle_module_file("", "bundles")


def test_syntax_error_is_quoted(project):
    project.write("trainer.py", "import os\n\ndef run_fn(fn_args:\n    pass\n")
    with pytest.raises(ModuleFileError) as error:
        project.bundle()
    assert "is not valid Python" in str(error.value)
    place = f'File "{project.folder}/trainer.py", line 3'
    assert f"{place}\n       def run_fn(fn_args:" in str(error.value)


def test_all_broken_helpers_are_told_at_once(project):
    project.write("trainer.py", "import one, two, three\n" + RUN_FN)
    project.write("one.py", "x = = 1")
    project.write("two.py", b"x = 1\x00")
    (project.folder / "three.py").symlink_to("/proc/self/mem")  # opens, and fails when it is read
    with pytest.raises(ModuleFileError) as error:
        project.bundle()
    message = str(error.value)
    assert "3 problems" in message
    assert f'File "{project.folder}/one.py", line 1' in message
    assert f"{project.folder}/two.py" in message
    assert f"{project.folder}/three.py cannot be read: [Errno 5]" in message


def test_missing_run_fn_is_found_without_running(project):
    project.write("trainer.py", "raise RuntimeError\ndef runfn(fn_args):\n    pass\n")
    with pytest.raises(ModuleFileError) as error:
        project.bundle()
    assert f"{project.folder}/trainer.py does not define 'run_fn'" in str(error.value)
    assert "`def run_fn(fn_args)`" in str(error.value)
    assert "Did you mean 'runfn'?" in str(error.value)


def test_warnings_of_the_compiler_are_left_to_the_import(project):
    project.write("trainer.py", "PATTERN = '\\d'\n" + RUN_FN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        project.bundle()


@pytest.mark.parametrize(
    "source",
    [
        "from helper import *",
        "from helper import run_fn",
        "import helper\nrun_fn = helper.run_fn",
        "import helper\nif True:\n    run_fn = helper.run_fn",
        "import helper\nglobals()['run_fn'] = helper.run_fn",
        "import helper\ndef __getattr__(name):\n    return getattr(helper, name)",
        "import helper\ndef f():\n    global run_fn\n    run_fn = helper.run_fn\nf()",
        "import helper, sys\nsys.modules[__name__] = helper",
        "exec('from helper import run_fn')",
    ],
)
def test_run_fn_may_be_defined_in_any_way(project, source):
    project.write("trainer.py", source + "\nimport helper")
    project.write("helper.py", RUN_FN)
    assert project.run() == 0


def test_bundle_cannot_be_written(project):
    project.write("trainer.py", RUN_FN)
    project.destination.write_text("a file")
    with pytest.raises(ModuleFileError, match=r"Cannot pack .*trainer\.py into .*bundles"):
        project.bundle()


CONVERTED = """
import tensorflow_model_analysis as tfma

def run_fn(fn_args):
    spec = trainer_fn(fn_args, None)
    finish(spec, fn_args.eval_model_dir)

def finish(spec, folder):
    {}tfma.{}
"""
EXPORT = 'export.export_eval_savedmodel(spec["estimator"], folder, None)'


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (EXPORT, r"tfma\.export\.export_eval_savedmodel"),
        ("EvalSharedModel(estimator=spec, export_dir_base=folder)", r"tfma\.EvalSharedModel"),
    ],
)
def test_what_model_analysis_no_longer_has_is_found_before_training(tmp_path, call, name):
    path = tmp_path / "converted.py"
    path.write_text(CONVERTED.format("", call))
    with pytest.raises(ModuleFileError, match=rf"line 9 calls {name}\. .*leave the call out"):
        bundle_module_file(str(path), str(tmp_path / "bundles"))


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("if folder: ", EXPORT),
        ("return lambda: ", EXPORT),
        ("", "EvalSharedModel(model_path=folder)"),
        ("", "default_eval_shared_model(folder)"),
    ],
)
def test_calls_that_may_work_or_never_happen_are_packed(tmp_path, before, call):
    path = tmp_path / "converted.py"
    path.write_text(CONVERTED.format(before, call))
    assert bundle_module_file(str(path), str(tmp_path / "bundles")).digest
