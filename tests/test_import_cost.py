"""`import generic_trainer` is cheap; the component loads only TFX's own DSL and pydantic."""

import json
import subprocess
import sys

import pytest

from tests.house import ROOT, run_python

_PYDANTIC = {"annotated_types", "pydantic", "pydantic_core", "typing_inspection"}
REPORT_IMPORTS = """
import json, sys, time

def third_party():
    tops = {name.partition(".")[0] for name in sys.modules}
    return tops - set(sys.stdlib_module_names)

*before_names, after_names = " ".join(sys.argv[1:]).split(" then ")
for name in " ".join(before_names).split():
    __import__(name)
before, started = third_party(), time.perf_counter()
for name in after_names.split():
    __import__(name)
seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "modules": sorted(third_party() - before)}))
"""


def import_in_new_process(*modules: str, options: tuple[str, ...] = ()) -> set[str]:
    """Returns the top-level packages outside the standard library that `modules` load.

    Behind a "then" these are what the modules before it have not loaded.
    """
    done = run_python(*options, "-c", REPORT_IMPORTS, *modules)
    report = json.loads(done.stdout.splitlines()[-1])
    print(f"import {', '.join(modules)}: {report['seconds']:.3f} s")
    return set(report["modules"])


def test_package_errors_and_command_need_nothing_but_the_standard_library() -> None:
    # -S: without site-packages, as in an environment where nothing else is installed.
    names = "generic_trainer", "generic_trainer.errors", "generic_trainer.cli"
    loaded = import_in_new_process(*names, options=("-S",))
    assert loaded - {"__mp_main__"} == {"generic_trainer"}
    # Else the doctor could not be asked what is missing.
    command = [sys.executable, "-S", "-m", "generic_trainer.cli", "explain"]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "`generic-trainer doctor` lists" in done.stderr


@pytest.mark.slow
def test_component_loads_nothing_that_the_dsl_of_tfx_does_not() -> None:
    dsl = "tfx.dsl.components.base.base_component", "tfx.types.standard_component_specs"
    added = import_in_new_process(*dsl, "then", "generic_trainer.components")
    assert added - _PYDANTIC == {"generic_trainer"}


def test_first_process_of_a_pod_leaves_tensorflow_to_the_one_that_trains() -> None:
    assert "tensorflow" not in import_in_new_process("generic_trainer.launchers._remote.program")


WRONG_CALLS = {
    "run no.py --output o --examples .": "MODULE_FILE: no.py does not exist",
    "run setup.py --output o --examples .": "run: --examples: . has no Split-train",
    "run setup.py --output o --train no --eval no": "no file matches",
    "run setup.py --output o --examples . --schema no --contract no": "2 problems",
    "run setup.py --output o --examples . --sign-with no": "--sign-with: no does not exist",
    "run setup.py --output o --examples . --distribution {": "--distribution: ",
    "validate no": "validate: MODEL: no is not a directory or a file",
    "validate docs --schema no --source gone": "--source: gone does not exist",
    "validate docs --html /nowhere/x.html": "/nowhere/x.html is not in an existing directory",
    "validate docs --html docs": "--html: docs is a directory",
    "verify docs --key no": "--key: no does not exist",
    "verify gs://x --key setup.py": "MODEL: gs://x is remote: copy it to a local directory",
    "explain sesion": "unknown check 'sesion' (did you mean 'session'?)",
    "migrate no.py": "no.py cannot be read: [Errno 2] No such file",
    "init .": "README.md exists already",
    "publish no": "publish: wrong options: RUN: no does not exist",
}
CALL_EACH = """
import sys
from generic_trainer import cli
for words in sys.argv[1:]:
    status = cli.main(words.split())
    assert status == 2 and not {"tensorflow", "tfx"} & set(sys.modules), (words, status)
    print("END", file=sys.stderr)
"""


def test_a_wrong_call_is_told_before_tensorflow_is_imported() -> None:
    *answers, _ = run_python("-c", CALL_EACH, *WRONG_CALLS).stderr.split("END\n")
    for answer, told in zip(answers, WRONG_CALLS.values(), strict=True):
        assert told in answer
        assert len(answer.splitlines()) <= 3
