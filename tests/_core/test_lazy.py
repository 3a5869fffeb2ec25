"""What is installed, beside folders that only have the name of it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from generic_trainer._core.lazy import is_installed
from tests.house import HAS_TFX, ROOT


@pytest.mark.parametrize(
    ("distribution", "expected"), [("tensorflow-metadata", True), ("made_up", False)]
)
def test_a_folder_on_the_path_is_no_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: str, expected: bool
) -> None:
    (tmp_path / "made_up").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("made_up") is not None
    assert is_installed(distribution) == expected


@pytest.mark.skipif(HAS_TFX, reason="Python finds the installed TFX first")
def test_a_folder_called_tfx_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "tfx" / "data").mkdir(parents=True)
    source = "from generic_trainer.executors import FN_ARGS_FACTORY as f; import pkgutil; "
    code = f"import sys; sys.path += [{str(ROOT)!r}, {str(tmp_path)!r}]; {source}"
    subprocess.run([sys.executable, "-c", f"{code} pkgutil.resolve_name(f)"], check=True)
