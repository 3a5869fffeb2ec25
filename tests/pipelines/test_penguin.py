"""The example, from the command line to a prediction of the pushed model."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines import run_beam, run_local
from pipelines._summary import first_penguin, predict
from tests.pipelines.penguin_run import PenguinRun, run_penguin, with_output

pytestmark = pytest.mark.slow

SPECIES = [b"Adelie", b"Chinstrap", b"Gentoo"]
STAGES = [
    *("CsvExampleGen", "LatestBlessedModel", "StatisticsGen", "SchemaGen", "ExampleValidator"),
    *("Transform", "GenericTrainer", "Evaluator", "Pusher"),
]


def lines_of(run: PenguinRun, word: str) -> list[str]:
    return [line for line in run.output.splitlines() if line.strip().startswith(word)]


def test_the_model_is_blessed_and_pushed(penguin_run: PenguinRun) -> None:
    pushed_to = Path(penguin_run.results.pushed_to or "")

    assert penguin_run.results.blessed
    assert pushed_to.parent == penguin_run.runs_dir / "penguin" / "serving"
    assert (pushed_to / "saved_model.pb").is_file()


def test_the_terminal_shows_stages_the_training_and_little_else(penguin_run: PenguinRun) -> None:
    shown = [lines_of(penguin_run, stage)[-1] for stage in STAGES]
    assert [line.split()[0] for line in shown] == STAGES
    assert all(line.endswith(" s") for line in shown)

    log = (penguin_run.runs_dir / "penguin" / "pipeline.log").read_text()

    assert lines_of(penguin_run, "Epoch 10/10")
    # How often the status of a training is logged depends on how long it takes.
    others = [line for line in penguin_run.output.splitlines() if "live_run: " not in line]
    assert len(others) < 60, penguin_run.output
    assert "Setting to DenseTensor" in log
    assert "Setting to DenseTensor" not in penguin_run.output


def test_the_summary_tells_place_quality_and_a_prediction(penguin_run: PenguinRun) -> None:
    assert penguin_run.results.pushed_to in lines_of(penguin_run, "Pushed model")[0]
    assert "blessed; no blessed model to compare with yet" in lines_of(penguin_run, "Verdict")[0]
    (checks,) = lines_of(penguin_run, "Checks")
    assert re.search(r"\d\d passed in [\d.]+ s, 0 with a warning", checks), checks
    report = next(x for x in penguin_run.output.splitlines() if x.endswith("/report.html"))
    assert Path(report.strip()).is_file()
    assert lines_of(penguin_run, "Evaluation")[0].endswith("of 140")
    assert float(lines_of(penguin_run, "validation/epoch_accuracy")[0].split()[1]) > 0.9
    assert lines_of(penguin_run, "→ Adelie, ")
    metrics = penguin_run.results.training_metrics()
    assert 0.9 < metrics["validation/epoch_accuracy"] <= 1.0
    assert metrics["train/epoch_loss"] > 0.0


def test_the_pushed_model_predicts_a_probability_for_each_species(penguin_run: PenguinRun) -> None:
    penguin = first_penguin(penguin_run.results.uri("examples"))
    del penguin.features.feature["species"]

    outputs = predict(penguin_run.results.pushed_to, [penguin, penguin, penguin])

    assert outputs["probabilities"].shape == (3, 3)
    np.testing.assert_allclose(tf.reduce_sum(outputs["probabilities"], axis=1), 1.0, rtol=1e-5)
    assert set(outputs["species"].numpy()) <= set(SPECIES)

    unmeasured = predict(penguin_run.results.pushed_to, [tf.train.Example()])
    assert np.isfinite(unmeasured["probabilities"]).all()


def test_a_second_run_uses_the_cache_and_finds_the_blessed_model(penguin_run: PenguinRun) -> None:
    second = run_penguin(penguin_run.runs_dir)

    for stage in ("CsvExampleGen", "Transform", "GenericTrainer"):
        assert lines_of(second, stage)[-1].split() == [stage, "cached"]
    first_model = penguin_run.results.outputs["model"]
    assert second.results.outputs["model"].id == first_model.id
    assert second.results.baseline is not None
    assert second.results.baseline.id == first_model.id
    assert "blessed; compared with the blessed model" in lines_of(second, "Verdict")[0]


def test_a_failing_module_stops_the_run_with_its_own_error(tmp_path: Path) -> None:
    module_file = tmp_path / "unable.py"
    module_file.write_text("def run_fn(fn_args):\n    return 1\n")
    arguments = ["--runs-dir", str(tmp_path), "--module-file", str(module_file)]

    exit_code, output = with_output(lambda: run_local.main(arguments))

    assert exit_code == 1
    assert "preprocessing_fn" in output
    assert f"The full log: {tmp_path / 'penguin' / 'pipeline.log'}" in output
    assert "Traceback" not in output


def test_a_module_file_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        run_local.main(["--module-file", str(tmp_path / "gone.py")])

    assert exit_info.value.code == 2
    assert f"no such file: {tmp_path / 'gone.py'}" in capsys.readouterr().err


def test_beam_runs_the_same_pipeline(tmp_path: Path) -> None:
    run = run_penguin(tmp_path, run_beam.main)
    assert run.results.blessed
    assert Path(run.results.pushed_to or "", "saved_model.pb").is_file()
