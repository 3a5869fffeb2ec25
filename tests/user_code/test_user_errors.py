"""Each mistake of the user gives one error that quotes the user's own file and line."""

import sys
import traceback

import pytest

from generic_trainer.errors import ModuleFileError, TrainingError
from tests.user_code.conftest import run


def quoted(project, name: str, line: int, place: str, source: str) -> str:
    return f'File "{project.folder}/{name}", line {line}{place}\n    {source}'


PASS = "def run_fn(fn_args): pass\n"
ESTIMATOR = "import tensorflow as tf\ndef run_fn(fn_args):\n    tf.{}estimator.Estimator(print)\n"
DIMENSION = "import tensorflow as tf\ndef run_fn(a):\n    tf.zeros([2, 3]).shape[1].value\n"
DIMENSIONS = """
def run_fn(a):
    shape = __import__("tensorflow").TensorShape([None, 3])
    for size in shape:
        size.value
"""
STEPS = (
    "from types import SimpleNamespace\ndef run_fn(_):\n"
    "    fn_args = SimpleNamespace(train_steps=None, eval_steps=None)\n"
)
LOOKUP = (
    "import tensorflow as tf\ndef run_fn(a):\n"
    "    tf.keras.layers.{}Lookup(vocabulary=[{}], num_oov_indices=0)(tf.constant([{}]))\n"
)
OPEN = (
    "import os\ndef run_fn(fn_args):\n"
    "    open(os.path.join(os.path.dirname(__file__), 'vocabulary.txt'))\n"
)
CAUSES = """def run_fn(fn_args):
    try:
        try:
            {}['units']
        except KeyError as error:
            raise ValueError('bad settings') from error
    except ValueError as error:
        raise RuntimeError('no settings') from error
"""
GROUP = """def run_fn(fn_args):
    raise ExceptionGroup('x', [ExceptionGroup('y', [KeyError('a')]), ValueError('b')])
"""
LONG = "\x1b[1mthe beginning\x1b[0m" + 9000 * "x" + "the end"
# Case → files, the quoted line (file, number, place, source) and parts of the message.
IMPORTING = {
    "exception while importing": (
        {"trainer.py": f"import helper\n{PASS}", "helper.py": "X = 1\nY = X.shape\n"},
        ("helper.py", 2, ", in <module>", "Y = X.shape"),
        ["Importing module 'trainer' failed.\nAttributeError: "],
    ),
    "missing package": (
        {"trainer.py": f"import os\nimport not_there.sub\n{PASS}"},
        ("trainer.py", 2, ", in <module>", "import not_there.sub"),
        ["No module named 'not_there'", "install it where the trainer runs", "constant name"],
    ),
    **{
        f"trainer of another library: {name}": (
            {"trainer.py": f"import {name}\n{PASS}"},
            ("trainer.py", 1, ", in <module>", f"import {name}"),
            [f"Replace {name.partition('.')[0]!r} with generic_trainer.trials"],
        )
        for name in ("determined.keras", "pedl")
    },
    **{
        f"missing module of an installed package: {name}": (
            {"trainer.py": f"import {name}\n{PASS}"},
            ("trainer.py", 1, ", in <module>", f"import {name}"),
            [told],
        )
        for name, told in (
            ("json.nothing", "'json' is installed (the standard library) and has no module"),
            ("numpy.nothing.more", "and has no module 'numpy.nothing': another version"),
            ("tensorflow.contrib.layers", "import tf1 as tf"),
            ("tensorflow.estimator", 'Write "from generic_trainer.estimator import tf"'),
        )
    },
    **{
        f"missing module of a packed {kind}": (
            {"trainer.py": f"import layers.dens\n{PASS}", file: ""},
            ("trainer.py", 1, ", in <module>", "import layers.dens"),
            ["'layers' was packed as it was found, and has no such module: check the spelling"],
        )
        for kind, file in (
            ("package", "layers/__init__.py"),
            ("folder", "layers/dense.py"),
            ("module", "layers.py"),
        )
    },
    "folder of data alone": (
        {"trainer.py": f"import words\n{PASS}", "words/words.txt": "a"},
        ("trainer.py", 1, ", in <module>", "import words"),
        ["needs an __init__.py"],
    ),
    "missing name in a helper": (
        {"trainer.py": f"from helper import missing\n{PASS}", "helper.py": ""},
        ("trainer.py", 1, ", in <module>", "from helper import missing"),
        ["cannot import name 'missing' from 'helper' ({folder}/helper.py)"],
    ),
    "relative import in a module file": (
        {"trainer.py": f"from . import helper\n{PASS}", "helper.py": ""},
        ("trainer.py", 1, ", in <module>", "from . import helper"),
        ['write "import helper"'],
    ),
    "syntax error in a package": (
        {
            "trainer.py": f"import layers.dense\n{PASS}",
            "layers/__init__.py": "",
            "layers/dense.py": "X = 1\nY = = 2\n",
        },
        ("trainer.py", 1, ", in <module>", "import layers.dense"),
        ['File "{folder}/layers/dense.py", line 2\n    Y = = 2'],
    ),
    "sys.exit while importing": (
        {"trainer.py": f"import sys\nsys.exit(0)\n{PASS}"},
        ("trainer.py", 2, ", in <module>", "sys.exit(0)"),
        [],
    ),
    "run_fn is missing after the import": (
        {"trainer.py": "from helper import *\n", "helper.py": "def ran_fn(fn_args): pass"},
        None,
        ["{folder}/trainer.py does not define 'run_fn'", "did you mean 'ran_fn'?"],
    ),
}
TRAINING = {
    "exception in training": (
        {
            "trainer.py": "import helper\ndef run_fn(fn_args):\n    helper.build(0)\n",
            "helper.py": "import json\ndef build(units):\n    json.loads('{')\n",
        },
        ("helper.py", 3, ", in build", "json.loads('{')"),
        ["run_fn of module 'trainer' failed.\njson.decoder.JSONDecodeError: "],
    ),
    "error with causes": (
        {"trainer.py": CAUSES},
        ("trainer.py", 8, ", in run_fn", "raise RuntimeError('no settings') from error"),
        ["RuntimeError: no settings", "Caused by ValueError: ", "Caused by KeyError: 'units'"],
    ),
    **(
        {
            "group of errors": (
                {"trainer.py": GROUP},
                ("trainer.py", 2, ", in run_fn", GROUP.splitlines()[1].strip()),
                ["Caused by KeyError: 'a'", "Caused by ValueError: b"],
            )
        }
        if sys.version_info >= (3, 11)
        else {}
    ),
    "colored and long text": (
        {"trainer.py": f"def run_fn(a):\n    raise ValueError({LONG!r})\n"},
        None,
        ["ValueError: the beginning", "\n[...]\n", "the end\n"],
    ),
    "missing package in training": (
        {"trainer.py": "def run_fn(fn_args):\n    import not_there\n"},
        ("trainer.py", 2, ", in run_fn", "import not_there"),
        ["install it where the trainer runs"],
    ),
    **{
        f"sys.exit({status}) in training": (
            {"trainer.py": f"import sys\ndef run_fn(fn_args):\n    sys.exit({status})\n"},
            ("trainer.py", 3, ", in run_fn", f"sys.exit({status})"),
            ["return from the function instead"],
        )
        for status in ("", "0", "'gone'")
    },
    "missing data file": (
        {"trainer.py": OPEN, "vocabulary.txt": "a b"},
        None,
        ["FileNotFoundError", "only inside a package that the module imports", "without a dot"],
    ),
    **{
        f"TensorFlow without tf.{package}estimator": (
            {"trainer.py": ESTIMATOR.format(package)},
            ("trainer.py", 3, ", in run_fn", f"tf.{package}estimator.Estimator(print)"),
            ['Write "from generic_trainer.estimator import tf" instead of', "import tf1 as tf"],
        )
        for package in ("", "compat.v1.")
    },
    **{
        f"name of TensorFlow 1: {name}": (
            {"trainer.py": f"import tensorflow as tf\ndef run_fn(fn_args):\n    tf.{name}()\n"},
            ("trainer.py", 3, ", in run_fn", f"tf.{name}()"),
            [f"TensorFlow 2 has it as tf.compat.v1.{name}.", "import tf1 as tf"],
        )
        for name in ("placeholder", "train.AdamOptimizer", "app")
    },
    **{
        f"{split}_steps that nothing sets: {use}": (
            {"trainer.py": STEPS + f"    {use.format(f'fn_args.{split}_steps')}\n"},
            ("trainer.py", 4, ", in run_fn", use.format(f"fn_args.{split}_steps")),
            [f"fn_args.{split}_steps is None", f"--{split}-steps", "tf_dataset_factory"],
        )
        for split in ("train", "eval")
        for use in ("range({})", "3 * {}", "{} // 2", "{} > 2", "int({})")
    },
    **{
        f"value beyond a vocabulary: {layer}": (
            {"trainer.py": LOOKUP.format(layer, known, found)},
            None,
            ["A value is not in the vocabulary of this lookup", "num_oov_indices=1 would shift"],
        )
        for layer, known, found in (("String", "'a'", "'b'"), ("Integer", 1, 2))
    },
    "dimension of TensorFlow 1": (
        {"trainer.py": DIMENSION},
        ("trainer.py", 3, ", in run_fn", "tf.zeros([2, 3]).shape[1].value"),
        ["import tf1 as tf"],
    ),
    "unknown dimension of TensorFlow 1 in a loop": (
        {"trainer.py": DIMENSIONS},
        ("trainer.py", 5, ", in run_fn", "size.value"),
        ["import tf1 as tf"],
    ),
}


@pytest.mark.parametrize("case", [*IMPORTING, *TRAINING])
def test_the_error_quotes_the_line_and_names_a_remedy(project, case):
    files, line, parts = (IMPORTING | TRAINING)[case]
    for name, source in files.items():
        project.write(name, source)
    with pytest.raises(ModuleFileError if case in IMPORTING else TrainingError) as error:
        project.run()
    message = str(error.value)
    assert line is None or quoted(project, *line) in message
    assert not [p for p in parts if p.replace("{folder}", str(project.folder)) not in message]
    assert "\x1b" not in message


@pytest.mark.parametrize(
    "line",
    [
        "fn_args.estimator",
        "SimpleNamespace(a=1).contrib",
        "dict(a=None)['a'].value",
        "for one in [None]: one.value",
        "raise RuntimeError('x is only supported when eager execution is enabled')",
    ],
)
def test_a_name_that_the_users_own_object_lacks_is_none_of_tensorflow_1(project, line):
    source = f"from types import SimpleNamespace\ndef run_fn(fn_args):\n    {line}\n"
    project.write("trainer.py", source)
    with pytest.raises(TrainingError) as error:
        project.run()
    assert str(error.value).endswith(f"\n    {line}")


@pytest.mark.parametrize("then", ["left", "removed", "edited"])
def test_tracebacks_show_the_packed_lines_under_the_users_path(project, then):
    path = project.write("trainer.py", "def run_fn(fn_args):\n    return fn_args.missing\n")
    code = project.bundle()
    if then == "removed":  # as on a worker of a cluster
        path.unlink()
    elif then == "edited":
        project.write("trainer.py", "# edited\n" * 10)
    with pytest.raises(TrainingError) as error:
        run(code)
    line = quoted(project, "trainer.py", 2, ", in run_fn", "return fn_args.missing")
    assert line in str(error.value)
    traceback_text = "".join(traceback.format_exception(error.value))
    assert "generic-trainer-code-" not in traceback_text
    assert then == "edited" or line in traceback_text


WRONG = [
    ("def run_fn():\n    pass", "run_fn()"),
    ("def run_fn(a, b):\n    pass", "run_fn(a, b)"),
    ("def run_fn(*, fn_args):\n    pass", "run_fn(*, fn_args)"),
    ("async def run_fn(fn_args):\n    pass", "run_fn as an async function or a generator"),
    ("def run_fn(fn_args):\n    yield", "run_fn as an async function or a generator"),
    ("run_fn = None", "run_fn = None"),
    ("run_fn = 'trainer'", "run_fn = 'trainer'"),
]


@pytest.mark.parametrize(("source", "found"), WRONG)
def test_wrong_signature(project, source, found):
    project.write("trainer.py", f"# line 1\n{source}\n")
    with pytest.raises(ModuleFileError) as error:
        project.run()
    message = str(error.value)
    assert f"a function that takes one argument, run_fn(fn_args); found {found}" in message
    if found.endswith(")"):
        assert message.startswith(f"{project.folder / 'trainer.py'}: line 2: ")
    elif "def" in source:
        assert quoted(project, "trainer.py", 2, "", source.partition("\n")[0]) in message


REPLACED = [
    "if run_fn:\n    from os import getcwd as run_fn",
    "run_fn = lambda fn_args: 1",
    "def run_fn(fn_args):\n    pass",
]


@pytest.mark.parametrize("later", REPLACED)
def test_a_definition_that_may_be_replaced_is_accepted_before_the_run(project, later):
    project.write("trainer.py", f"def run_fn():\n    pass\n{later}")
    project.bundle()


CALLABLES = [
    "def run_fn(anything):\n    return 1",
    "def run_fn(fn_args, verbose=False):\n    return 1",
    "def run_fn(*args, **kwargs):\n    return 1",
    "run_fn = lambda fn_args: 1",
    "class Trainer:\n    def __call__(self, fn_args):\n        return 1\nrun_fn = Trainer()",
    "import functools\nrun_fn = functools.partial(lambda units, fn_args: units, 1)",
    "from tensorflow import function\n@function\ndef run_fn(fn_args):\n    return 1",
]


@pytest.mark.parametrize("source", CALLABLES)
def test_any_callable_of_one_argument_is_taken(project, source):
    project.write("trainer.py", source)
    assert project.run() == 1
