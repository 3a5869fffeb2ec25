"""The executor with workers in child processes: from artifacts to a published model."""

from pathlib import Path

import pytest

from generic_trainer import Distribution
from generic_trainer.errors import TrainingError
from tests import helpers

pytest.importorskip("tfx")
LOCAL = Distribution(launcher="local", max_failures=0).to_json()


def test_a_crash_leaves_its_log_and_no_model(tmp_path: Path) -> None:
    examples = helpers.write_examples(tmp_path / "examples")
    outputs = helpers.output_artifacts(tmp_path / "outputs")
    body = "import ctypes; print('before the crash'); export(fn_args.serving_model_dir)"
    source = helpers.run_fn(f"{body}; ctypes.string_at(0)")
    module_file = helpers.write_module(tmp_path, source)
    with pytest.raises(TrainingError, match="SIGSEGV"):
        helpers.train(module_file, examples, outputs, distribution=LOCAL)
    assert not Path(helpers.published_model(outputs)).exists()
    kept = Path(outputs["model_run"][0].uri + ".failed", "training.log")
    assert "before the crash" in kept.read_text(encoding="utf-8")
