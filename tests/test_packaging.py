"""The distribution holds the whole package, and the constraints hold the whole distribution."""

import configparser
import importlib
import re
import shutil
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import generic_trainer
from generic_trainer._entry_points import GROUP
from tests.house import ROOT, run_python

EXTRAS = {
    "core", "dev", "docs", "examples", "kfp", "kubernetes", "mlflow", "notebook", "ray",
    "signing", "slim", "test", "tfx", "vertex", "wandb",
}  # fmt: skip
STACKS = {"baseline": ["3.10"], "current": ["3.10", "3.11", "3.12", "3.13"]}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that `pip install .` makes of this checkout."""
    # From a copy: setuptools builds in place and would pack what an earlier build left there.
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "generic_trainer", folder / "src" / "generic_trainer", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, folder / "src")
    pip = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run_python(*pip, "--wheel-dir", folder, folder / "src", cwd=folder)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_wheel_holds_every_file_of_one_package(wheel: zipfile.ZipFile) -> None:
    written = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "generic_trainer").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert written - set(wheel.namelist()) == set()
    tops = {name.split("/")[0] for name in wheel.namelist()}
    version = generic_trainer.__version__
    assert tops == {"generic_trainer", f"generic_trainer-{version}.dist-info"}


def test_metadata_says_whose_and_what_it_is_and_where_it_runs(metadata: Message) -> None:
    assert metadata["Name"] == "generic-trainer"
    assert metadata["Version"] == generic_trainer.__version__
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS
    assert SpecifierSet(metadata["Requires-Python"]) == SpecifierSet(">=3.10,<3.14")
    assert metadata["Author"] and metadata["License"] == "Apache-2.0"
    assert "tfx" in metadata["Keywords"]
    told = {each.rpartition(" ")[2] for each in metadata.get_all("Classifier", [])}
    assert {version for versions in STACKS.values() for version in versions} <= told


def test_source_distribution_holds_the_tests_and_what_they_read(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(
        ".git", ".*venv*", ".chroot", "build", "runs", "__pycache__", ".*_cache", "*.egg-info"
    )
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    code = "from setuptools.build_meta import build_sdist; build_sdist('out')"
    run_python("-c", code, cwd=source)
    with tarfile.open(next((source / "out").glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    folders = "tests", "docs", "pipelines", "module_files", "constraints", "scripts"
    written = [path for folder in folders for path in (source / folder).rglob("*")]
    names = {path.relative_to(source).as_posix() for path in written if path.is_file()}
    names |= {"README.md", "Makefile", "mkdocs.yml", ".ci/run"}
    assert names - packed == set()


def test_entry_points_lead_to_functions(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    groups = configparser.ConfigParser()
    groups.read_string(wheel.read(name).decode())
    assert dict(groups["console_scripts"]) == {"generic-trainer": "generic_trainer.cli:main"}
    assert callable(importlib.import_module("generic_trainer.cli").main)
    for path in groups[GROUP].values():
        module, _, api = path.partition(":")
        assert callable(getattr(importlib.import_module(module), api).run_fn)


def pins(stack: str, python: str) -> dict[str, str]:
    """Returns distribution → pinned version in `constraints/<stack>.txt` on that Python."""
    text = (ROOT / "constraints" / f"{stack}.txt").read_text(encoding="utf-8")
    lines = [Requirement(line) for line in re.findall(r"^[^#\s].*$", text, re.MULTILINE)]
    environment = environment_of(python)
    return {
        canonicalize_name(line.name): str(line.specifier).removeprefix("==")
        for line in lines
        if line.marker is None or line.marker.evaluate(environment)
    }


def environment_of(python: str, extra: str = "") -> dict[str, str]:
    """Returns the environment that markers are evaluated in: Linux, the given Python."""
    found = {name: str(value) for name, value in default_environment().items()}
    return found | {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "extra": extra,
    }


@pytest.mark.parametrize(
    ("stack", "python"), [(stack, python) for stack in STACKS for python in STACKS[stack]]
)
def test_constraints_pin_what_the_distribution_asks_for(
    stack: str, python: str, metadata: Message
) -> None:
    pinned = pins(stack, python)
    for extra in {"", *EXTRAS} - ({"signing"} if stack == "baseline" else set()):  # KFP 2.5
        environment = environment_of(python, extra)
        for requirement in map(Requirement, metadata.get_all("Requires-Dist", [])):
            wanted = requirement.marker is None or requirement.marker.evaluate(environment)
            if wanted and requirement.name != metadata["Name"]:  # an extra made of others
                version = pinned.get(canonicalize_name(requirement.name))
                assert version is not None, f"{requirement} is not pinned: make constraints"
                assert requirement.specifier.contains(version), f"{requirement}: {version} pinned"


def test_constraints_are_the_two_supported_stacks() -> None:
    assert pins("baseline", "3.10")["tfx"] == "1.16.0"
    assert {pins("current", python)["tfx"] for python in STACKS["current"]} == {"1.21.0"}


def test_commits_are_checked_by_the_commands_of_ci() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = {hook["id"]: hook["entry"] for repo in config["repos"] for hook in repo["hooks"]}
    stages = re.findall(r"(?m)^(\w+)\(\) \{ (.*); \}$", (ROOT / ".ci" / "run").read_text())
    assert hooks == {name: command for name, command in stages if name in hooks}
    assert hooks.keys() == {"lint", "types"}
