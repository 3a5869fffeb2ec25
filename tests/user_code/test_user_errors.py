"""Each mistake of the user gives one error that quotes the user's own file and line."""

from __future__ import annotations

import traceback

import pytest

from generic_trainer.errors import DataError, ModuleFileError, TrainingError
from generic_trainer.user_code import UserCode, call_user_function, user_function
from tests.user_code.conftest import run


def quoted(project, name: str, line: int, place: str, source: str) -> str:
    return f'File "{project.folder}/{name}", line {line}{place}\n    {source}'


def test_exception_in_training(project):
    project.write("trainer.py", "import helper\ndef run_fn(fn_args):\n    helper.build(0)\n")
    project.write("helper.py", "import json\ndef build(units):\n    json.loads('{')\n")
    with pytest.raises(TrainingError) as error:
        project.run()
    message = str(error.value)
    assert message.startswith("run_fn of module 'trainer' failed.\njson.decoder.JSONDecodeError: ")
    assert quoted(project, "helper.py", 3, ", in build", "json.loads('{')") in message
    assert isinstance(error.value.__cause__, ValueError)


def test_whole_traceback_shows_the_users_files_afterwards(project):
    project.write("trainer.py", "def run_fn(fn_args):\n    return fn_args.missing\n")
    with pytest.raises(TrainingError) as error:
        project.run()
    shown = "".join(traceback.format_exception(error.value))
    assert quoted(project, "trainer.py", 2, ", in run_fn", "return fn_args.missing") in shown
    assert "generic-trainer-code-" not in shown


def test_lines_are_quoted_where_the_users_files_are_not(project):
    """As on a worker in the cluster."""
    path = project.write("trainer.py", "def run_fn(fn_args):\n    return fn_args.missing\n")
    code = project.bundle()
    path.unlink()
    with pytest.raises(TrainingError) as error:
        run(code)
    line = quoted(project, "trainer.py", 2, ", in run_fn", "return fn_args.missing")
    assert line in str(error.value)
    assert line in "".join(traceback.format_exception(error.value))


def test_lines_are_quoted_as_they_were_packed(project):
    project.write("trainer.py", "def run_fn(fn_args):\n    return fn_args.missing\n")
    code = project.bundle()
    project.write("trainer.py", "# edited\n" * 10)
    with pytest.raises(TrainingError) as error:
        run(code)
    line = quoted(project, "trainer.py", 2, ", in run_fn", "return fn_args.missing")
    assert line in str(error.value)


def test_long_messages_are_cut(project):
    project.write("trainer.py", "def run_fn(fn_args):\n    raise ValueError('x' * 10**6)\n")
    with pytest.raises(TrainingError) as error:
        project.run()
    assert len(str(error.value)) < 3000
    assert "line 2, in run_fn" in str(error.value)


@pytest.mark.parametrize("status", ["", "0", "'gone'"])
def test_sys_exit_in_training_is_not_success(project, status):
    project.write("trainer.py", f"import sys\ndef run_fn(fn_args):\n    sys.exit({status})\n")
    with pytest.raises(TrainingError) as error:
        project.run()
    assert quoted(project, "trainer.py", 3, ", in run_fn", f"sys.exit({status})") in str(
        error.value
    )
    assert "return from the function instead" in str(error.value)


def test_keyboard_interrupt_passes(project):
    project.write("trainer.py", "def run_fn(fn_args):\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        project.run()


def test_errors_of_this_package_pass(project):
    def run_fn(fn_args):
        raise DataError("no such split")

    with pytest.raises(DataError, match=r"^no such split$"):
        call_user_function(run_fn, None, UserCode("trainer"))


def test_missing_data_file(project):
    project.write(
        "trainer.py",
        """
        import os
        def run_fn(fn_args):
            return open(os.path.join(os.path.dirname(__file__), "vocabulary.txt"))
        """,
    )
    project.write("vocabulary.txt", "a b")
    with pytest.raises(TrainingError) as error:
        project.run()
    assert "FileNotFoundError" in str(error.value)
    assert "only inside a package that the module imports" in str(error.value)


def test_exception_while_importing(project):
    project.write("trainer.py", "import helper\ndef run_fn(fn_args): pass\n")
    project.write("helper.py", "X = 1\nY = X.shape\n")
    with pytest.raises(ModuleFileError) as error:
        project.run()
    assert "Importing module 'trainer' failed.\nAttributeError: " in str(error.value)
    assert quoted(project, "helper.py", 2, ", in <module>", "Y = X.shape") in str(error.value)
    assert isinstance(error.value.__cause__, AttributeError)


def test_missing_package(project):
    project.write("trainer.py", "import os\nimport not_there.sub\ndef run_fn(fn_args): pass\n")
    with pytest.raises(ModuleFileError) as error:
        project.run()
    message = str(error.value)
    assert "ModuleNotFoundError: No module named 'not_there'" in message
    assert quoted(project, "trainer.py", 2, ", in <module>", "import not_there.sub") in message
    assert "install it where the trainer runs" in message
    assert "constant name" in message


def test_missing_package_in_training(project):
    project.write("trainer.py", "def run_fn(fn_args):\n    import not_there\n")
    with pytest.raises(TrainingError, match="install it where the trainer runs"):
        project.run()


def test_missing_name_in_a_helper(project):
    project.write("trainer.py", "from helper import missing\ndef run_fn(fn_args): pass\n")
    project.write("helper.py")
    with pytest.raises(ModuleFileError) as error:
        project.run()
    message = str(error.value)
    assert f"cannot import name 'missing' from 'helper' ({project.folder}/helper.py)" in message
    assert message.endswith("    from helper import missing")


def test_relative_import_in_a_module_file(project):
    project.write("trainer.py", "from . import helper\ndef run_fn(fn_args): pass\n")
    project.write("helper.py")
    with pytest.raises(ModuleFileError) as error:
        project.run()
    line = quoted(project, "trainer.py", 1, ", in <module>", "from . import helper")
    assert line in str(error.value)
    assert 'write "import helper"' in str(error.value)


def test_sys_exit_while_importing(project):
    project.write("trainer.py", "import sys\nsys.exit(0)\ndef run_fn(fn_args): pass\n")
    with pytest.raises(ModuleFileError) as error:
        project.run()
    assert quoted(project, "trainer.py", 2, ", in <module>", "sys.exit(0)") in str(error.value)


def test_syntax_error_in_a_package(project):
    project.write("trainer.py", "import layers.dense\ndef run_fn(fn_args): pass\n")
    project.write("layers/__init__.py")
    project.write("layers/dense.py", "X = 1\nY = = 2\n")
    with pytest.raises(ModuleFileError) as error:
        project.run()
    message = str(error.value)
    assert quoted(project, "layers/dense.py", 2, "", "Y = = 2") in message
    assert quoted(project, "trainer.py", 1, ", in <module>", "import layers.dense") in message


def test_run_fn_is_missing_after_import(project):
    project.write("trainer.py", "from helper import *\n")
    project.write("helper.py", "def ran_fn(fn_args): pass")
    with pytest.raises(ModuleFileError) as error:
        project.run()
    assert f"{project.folder}/trainer.py does not define 'run_fn'" in str(error.value)
    assert "Did you mean 'ran_fn'?" in str(error.value)


@pytest.mark.parametrize(
    "how", ["def trainer_fn(trainer_fn_args): pass", "from helper import trainer_fn"]
)
def test_wrong_signature_of_trainer_fn(project, how):
    project.write("trainer.py", how)
    project.write("helper.py", "def trainer_fn(trainer_fn_args): pass")
    with pytest.raises(ModuleFileError) as error:
        project.run()
    message = str(error.value)
    assert "takes two arguments, trainer_fn(trainer_fn_args, schema)" in message
    assert "found trainer_fn(trainer_fn_args)" in message


@pytest.mark.parametrize("name", ["tf.estimator.Estimator", "tf.compat.v1.estimator.Estimator"])
def test_tensorflow_without_estimators(project, name):
    project.write(
        "trainer.py", f"import tensorflow as tf\ndef run_fn(fn_args):\n    {name}(print)\n"
    )
    with pytest.raises(TrainingError) as error:
        project.run()
    message = str(error.value)
    assert quoted(project, "trainer.py", 3, ", in run_fn", f"{name}(print)") in message
    assert 'Write "from generic_trainer.estimator import tf" instead of' in message


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def run_fn():\n    pass", "run_fn()"),
        ("def run_fn(a, b):\n    pass", "run_fn(a, b)"),
        ("def run_fn(*, fn_args):\n    pass", "run_fn(*, fn_args)"),
        ("async def run_fn(fn_args):\n    pass", "run_fn as an async function or a generator"),
        ("def run_fn(fn_args):\n    yield", "run_fn as an async function or a generator"),
        ("run_fn = None", "run_fn = None"),
        ("run_fn = 'trainer'", "run_fn = 'trainer'"),
    ],
)
def test_wrong_signature(project, source, found):
    project.write("trainer.py", f"# line 1\n{source}\n")
    with pytest.raises(ModuleFileError) as error:
        project.run()
    message = str(error.value)
    assert "expected a function that takes one argument, run_fn(fn_args)" in message
    assert f"found {found}" in message
    if "def" in source:
        assert quoted(project, "trainer.py", 2, "", source.partition("\n")[0]) in message


@pytest.mark.parametrize(
    "source",
    [
        "def run_fn(anything):\n    return 1",
        "def run_fn(fn_args, verbose=False):\n    return 1",
        "def run_fn(*args, **kwargs):\n    return 1",
        "run_fn = lambda fn_args: 1",
        "class Trainer:\n    def __call__(self, fn_args):\n        return 1\nrun_fn = Trainer()",
        "import functools\nrun_fn = functools.partial(lambda units, fn_args: units, 1)",
        "from tensorflow import function\n@function\ndef run_fn(fn_args):\n    return 1",
    ],
)
def test_any_callable_of_one_argument_is_taken(project, source):
    project.write("trainer.py", source)
    assert project.run() == 1


def test_user_of_an_installed_module_is_quoted():
    code = UserCode("textwrap", "dedent")
    with user_function(code) as function, pytest.raises(TrainingError) as error:
        call_user_function(function, 1, code)
    assert "textwrap.py" in str(error.value)


def test_module_that_is_not_on_the_worker():
    with pytest.raises(ModuleFileError, match="'not_there' is a package, install it"):
        run(UserCode("not_there.trainer"))


def test_a_dimension_of_tensorflow_1(project):
    project.write(
        "trainer.py",
        "import tensorflow as tf\ndef run_fn(fn_args):\n    tf.zeros([2, 3]).shape[1].value\n",
    )
    with pytest.raises(TrainingError, match="import tf1 as tf"):
        project.run()
