"""A module with a trial class and no `run_fn`."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from generic_trainer._entry_points import may_define, run_fn_of
from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code import bundle_module_file

TRIAL = """
from generic_trainer.trials._trial import Trial

class Base(Trial):
    pass
"""


def load(directory: Path, source: str):
    path = directory / "model_def.py"
    path.write_text(source)
    code = bundle_module_file(str(path), str(directory / "bundle"), may_define=may_define)
    with run_fn_of(code) as function:
        return function


def test_the_class_may_derive_from_one_in_another_module(tmp_path):
    (tmp_path / "base.py").write_text(TRIAL)
    assert callable(load(tmp_path, "from base import Base\n\nclass MyTrial(Base):\n    pass\n"))


def run(function, directory: Path, **config):
    """Calls a `run_fn` up to the trial class that it chooses."""
    fn_args = SimpleNamespace(
        custom_config={"searcher": {"max_length": {"records": 1}}, **config},
        hyperparameters=None,
        checkpoint_dir=str(directory / "checkpoints"),
        model_run_dir=str(directory / "run"),
    )
    return function(fn_args)


def test_several_trial_classes_are_ambiguous(tmp_path):
    function = load(tmp_path, TRIAL + "\nclass Second(Trial):\n    pass\n")
    with pytest.raises(
        ModuleFileError, match=r"several trials \(Base, Second\).*run_fn_from_trial.*entrypoint"
    ):
        run(function, tmp_path)


def test_the_entrypoint_says_which_of_several(tmp_path):
    source = "\nclass Second(Trial):\n    @classmethod\n    def global_batch_size(cls, run):\n"
    function = load(tmp_path, f"{TRIAL}{source}        raise OSError('Second')\n")
    with pytest.raises(OSError, match="Second"):
        run(function, tmp_path, entrypoint="model_def:Second")


def test_a_class_that_is_only_called_a_trial(tmp_path):
    source = "class Trial:\n    pass\n\nclass Mine(Trial):\n    pass\n"
    with pytest.raises(ModuleFileError, match="does not define 'run_fn'"):
        load(tmp_path, source)


NAMED = """
class {0}({1}):
    @classmethod
    def global_batch_size(cls, run):
        raise OSError("{0}")
"""


@pytest.mark.parametrize(
    ("entrypoint", "chosen"),
    [
        ("model_def:Whole", "Whole"),  # which the module imports
        ("other_name:Small", "Small"),
        ("python3 -m determined.launch.horovod --trial model_def:Whole", "Whole"),
        (["python3", "-m", "determined.launch.horovod", "--trial", "model_def:Whole"], "Whole"),
        ("model_def:Trials.Nested", "Whole"),
        ("python3 train.py", "Small"),
        (None, "Small"),
    ],
)
def test_the_entrypoint_is_the_class_that_trains(tmp_path, entrypoint, chosen):
    (tmp_path / "base.py").write_text(TRIAL + NAMED.format("Whole", "Base"))
    nested = "class Trials:\n    Nested = Whole\n"
    source = f"from base import Whole\n{nested}" + NAMED.format("Small", "Whole")
    with pytest.raises(OSError, match=f"^{chosen}$"):
        run(load(tmp_path, source), tmp_path, entrypoint=entrypoint)


@pytest.mark.parametrize("name", ["Secnd", "Missing", "Path"])
def test_an_entrypoint_that_names_no_trial_class(tmp_path, name):
    source = f"from pathlib import Path\n{TRIAL}\nclass Second(Trial):\n    pass\n"
    with pytest.raises(ModuleFileError, match=f"model_def:{name}.* Base, Second") as raised:
        run(load(tmp_path, source), tmp_path, entrypoint=f"model_def:{name}")
    assert ("did you mean 'Second'" in raised.value.args[0]) == (name == "Secnd")


@pytest.mark.parametrize(
    ("source", "chosen"),
    [
        ("from base import WholeTrial", "WholeTrial"),
        ("from base import WholeTrial as Whole", "WholeTrial"),
        ("import base\n" + NAMED.format("Roses", "base.Flowers"), "Roses"),
        ("from base import Flowers as F\n" + NAMED.format("Roses", "F"), "Roses"),
        (
            f"from generic_trainer.trials._trial import Trial as T\n{NAMED.format('Own', 'T')}",
            "Own",
        ),
    ],
)
def test_the_class_may_be_imported_or_have_another_name(tmp_path, source, chosen):
    base = TRIAL + NAMED.format("WholeTrial", "Trial") + NAMED.format("Flowers", "Trial")
    (tmp_path / "base.py").write_text(base)
    function = load(tmp_path, source)
    with pytest.raises(OSError, match=f"^{chosen}$"):
        run(function, tmp_path)
