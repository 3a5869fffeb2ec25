"""Launchers of other distributions: found, asked for their options, and explained where missing.

`test_contract.py` runs the one of `batch.py`.
"""

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer import Distribution
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers import Launcher
from generic_trainer.launchers._registry import find_launcher
from tests.house import run_python
from tests.launchers import batch


@pytest.fixture
def is_installed(tmp_path: Path) -> Iterator[None]:
    with batch.installed(tmp_path):
        yield


@pytest.mark.parametrize("name", ["in_process", "local", "ray", "tfjob", "trainjob", "vertex"])
def test_own_launchers_need_no_entry_point(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", None)
    assert isinstance(find_launcher.__wrapped__(name), Launcher)


@pytest.mark.usefixtures("is_installed")
def test_a_launcher_of_another_distribution_has_options_of_its_own() -> None:
    given = {"folder": "/mnt", "queue": "fast"}
    wanted = Distribution(launcher=batch.NAME, num_workers=2, launcher_options=given)
    assert Distribution.from_json(wanted.to_json()) == wanted
    assert (wanted.options.queue, wanted.runs_here) == ("fast", False)


OTHER = {"launcher": batch.NAME, "launcher_options": {"folder": "/mnt"}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"launcher": "btch"}, r"launcher must be .* or 'batch', got 'btch' \(did you mean 'batch'"),
    ({**OTHER, "launcher_options": {}}, "launcher_options: .*missing.*'folder'"),
    ({**OTHER, "launcher_options": {"folder": "/", "queue": "x"}}, "there is no queue 'x'"),
    ({**OTHER, "launcher_options": {"folder": "/", "cue": "x"}}, "unexpected.*'cue'"),
    ({**OTHER, "gpu_type": "T4"}, "gpu_type='T4' means nothing to a batch job, but launcher is"),
    ({**OTHER, "num_workers": (1, 2)}, "but launcher is 'batch', which starts a fixed number"),
    ({**OTHER, "launcher": "local"}, "launcher_options=.* is for launchers of other distributions"),
    ({**OTHER, "launcher": "ray"}, "launcher_options=.* is for launchers of other distributions"),
]


@pytest.mark.usefixtures("is_installed")
@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_wrong_values_are_explained(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Distribution(**fields)


def test_an_unknown_launcher_is_told_with_what_would_add_it() -> None:
    with pytest.raises(ConfigurationError, match=r"must be 'in_process', .* or 'vertex', got 'sl"):
        Distribution(launcher="slurm")
    with pytest.raises(ConfigurationError, match=r"entry point of 'generic_trainer.laun"):
        Distribution.from_json('{"launcher": "slurm", "launcher_options": {"partition": "gpu"}}')


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", "ZeroDivisionError"),
        (
            "from generic_trainer.launchers import Launcher as BATCH",
            "TypeError: expected",
        ),
    ],
)
def test_a_launcher_that_cannot_be_loaded_concerns_its_own_users(
    source: str, reason: str, tmp_path: Path
) -> None:
    with batch.installed(tmp_path, source):
        assert Distribution(launcher="local").runs_here
        with pytest.raises(ConfigurationError, match=rf"'batch' of .* cannot be loaded \({reason}"):
            Distribution(launcher=batch.NAME)


LOADS = """
import sys
from generic_trainer.launchers import Distribution, TFJobOptions
Distribution(launcher="tfjob", tfjob=TFJobOptions(image="a/b:1")).runs_here
engines = {f"generic_trainer.launchers.{name}" for name in ("_ray", "_vertex", "_local.engine")}
print({*engines, "grpc", "kubernetes", "ray", "tensorflow"} & set(sys.modules))
"""


def test_the_launcher_in_use_alone_is_imported() -> None:
    assert run_python("-c", LOADS).stdout == "set()\n"
