"""The live run: pages, terminal and notebook, and what happens where nothing can be shown."""

import json
import logging
import os
from pathlib import Path

import pytest

from generic_trainer._core.event_files import scalars_by_step
from generic_trainer._core.progress import Progress, ProgressReader, note, recording
from generic_trainer._run.live_run import LogLines, live_run, text_of
from generic_trainer._run.live_view import View, render, run_sections, run_view, view_of
from generic_trainer._run.publish import write_report
from generic_trainer.validation import Result, ValidationReport
from tests._run.test_run_key import request_in

EVIL = "<script>alert(1)</script>"


def write_run(run_dir: Path, *, name: str = "accuracy", phase: str = "training") -> None:
    with recording(str(run_dir), "run") as log:
        log.write(phase=phase, at=1000.0, tasks={"chief": "running", f"worker 1{name}": "done"})
        log.write(read=f"3,000 examples of {name}", reader_batch_size=32, at=1000.5)
        for step in range(20, 420, 20):
            metrics = {"loss": 5 / step, "val_loss": 6 / step, name: 1 - 1 / step}
            log.write(at=1000.0 + step / 10, step=step, steps=1000, epoch=1, epochs=2, cpu=0.7,
                      memory_mb=900 + step, gpu=0.4, metrics=metrics)  # fmt: skip
        log.write(at=1042.0, restart=f"{name} was lost", checkpoint=400)


def view(run_dir: Path) -> View:
    progress = ProgressReader(str(run_dir)).look()
    return view_of(progress, str(run_dir), scalars_by_step(str(run_dir)))


def test_a_view_says_how_a_run_is(tmp_path: Path) -> None:
    write_run(tmp_path)
    shown = view(tmp_path)
    assert shown.headline == "Training" and shown.share == 0.4
    assert dict(shown.tiles) == {
        "step": "400 of 1,000", "epoch": "1 of 2", "examples/s": "320", "so far": "0:00:42",
        "left": "0:01:00", "CPU": "70%", "GPU": "40%", "memory": "1,300 MiB", "restarts": "1",
    }  # fmt: skip
    assert [chart.name for chart in shown.charts] == [
        "loss", "accuracy", "examples/s", "busy, in %", "memory in MiB"
    ]  # fmt: skip
    assert [line.label for line in shown.charts[0].lines] == ["", "validation"]
    assert text_of(shown).startswith("Training: step 400 of 1,000, epoch 1 of 2, examples/s 320, ")
    assert text_of(shown).endswith("restarts 1, loss 0.0125, accuracy 0.9975")
    assert dict(shown.facts)["Checkpoints"] == "1, the last at step 400"


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0], [float("nan"), float("inf"), 1e305]])
def test_curves_of_any_numbers(values: list[float]) -> None:
    points = [(float(step), value) for step, value in enumerate(values)]
    shown = view_of(Progress(curves={"loss": points}), "run", {"x": points})
    assert "nan" not in page_of(shown)


def page_of(shown: View) -> str:
    return render("live.html", view=shown, refresh=None)


def test_duplicates_and_constants_have_no_chart() -> None:
    curves = {
        "loss": [(1.0, 2.0), (2.0, 2.0)],
        "accuracy": [(1.0, 0.5), (2.0, 0.6)],
        "learning_rate": [(1.0, 0.1), (2.0, 0.1)],
        "evaluation_accuracy_vs_iterations": [(1.0, 0.5), (2.0, 0.6)],
    }
    shown = view_of(Progress(curves=curves), "run", {})
    assert [chart.name for chart in shown.charts] == ["loss", "accuracy"]


def test_losses_that_span_much_have_a_logarithmic_axis_and_memory_one_from_zero() -> None:
    progress = Progress(
        curves={"loss": [(1.0, 1000.0), (2.0, 1.0)]}, memory_mb=[(1.0, 900.0), (2.0, 1000.0)]
    )
    loss, memory = view_of(progress, "run", {}).charts
    assert loss.note == "logarithmic" and [text for _, text in loss.y_ticks][::3] == ["1", "1,000"]
    assert memory.note == "" and [text for _, text in memory.y_ticks] == ["0", "500", "1,000"]


def test_charts_have_ticks_and_show_the_values_under_the_pointer() -> None:
    curves = {"accuracy": [(1.0, 0.90), (2.0, 0.94)], "val_accuracy": [(2.0, 0.92)]}
    shown = view_of(Progress(curves=curves), "run", {})
    (chart,) = shown.charts
    assert [text for _, text in chart.x_ticks] == ["0", "0.5", "1", "1.5", "2"]
    assert [text for _, text in chart.y_ticks] == ["0.9", "0.91", "0.92", "0.93", "0.94"]
    texts = [text for _, _, text in chart.values]
    assert texts == ["step 1:  0.9", "step 2:  0.94 validation 0.92"]
    page = page_of(shown)
    assert "does not begin at 0" in page and all(text in page for text in [">0.93<", *texts])


def test_the_first_step_is_announced_while_it_is_traced(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress(phase="training", epochs=3)
    shown, lines = view_of(progress, "run", {}), LogLines()
    assert shown.headline == "Training: tracing the first step"
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            lines(shown, progress)
        progress.step = 1
        lines(view_of(progress, "run", {}), progress)
    assert caplog.messages == [
        "Training: tracing the first step: so far 0:00:00",
        "Training: step 1, so far 0:00:00",
    ]


def test_data_is_named_after_the_file_of_the_user(tmp_path: Path) -> None:
    with recording(str(tmp_path), "run"):
        note(phase="training", sources={"/tmp/run-1/examples/Split-train": f"data/{EVIL}.csv"})
        note(read="3 examples of /tmp/run-1/examples/Split-train (1 file(s))")
    assert dict(view(tmp_path).facts)["Data"] == f"3 examples of data/{EVIL}.csv (1 file(s))"
    assert EVIL not in page_of(view(tmp_path))


def test_the_first_log_line_comes_with_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = LogLines()
    with caplog.at_level(logging.INFO):
        lines(view(tmp_path), Progress(phase="training"))
        assert not caplog.text
        write_run(tmp_path)
        for _ in range(2):
            lines(view(tmp_path), Progress(phase="training"))
    assert caplog.text.count("Training: step 400 of 1,000") == 1


def test_pages_escape_what_others_have_named(tmp_path: Path) -> None:
    run_dir = tmp_path / EVIL.replace("/", "")
    write_run(run_dir, name=EVIL, phase=EVIL)
    (run_dir / "training.log").write_text(f"{EVIL}\n")
    sections = run_sections(
        request_in(tmp_path, model_run_dir=str(run_dir)), ProgressReader(str(run_dir)).look()
    )
    report = ValidationReport(EVIL, (Result(EVIL, "pass", EVIL),)).to_html(sections)
    (run_dir / "report.html").write_text(report)
    cell = render("cell.html", view=view(run_dir))
    pages = [report, page_of(view(run_dir)), cell, run_view(str(run_dir))]
    for page in pages:
        assert "<script" not in page and "script" in page


def test_report_states_what_the_time_went_into(tmp_path: Path) -> None:
    run_dir = tmp_path / "model_run"
    with recording(str(run_dir), "run") as log:
        log.write(at=1000.0, phase="training")
        log.write(at=1010.0, step=1)
        log.write(at=1040.0, step=31)
    request = request_in(tmp_path, model_run_dir=str(run_dir))
    facts = write_report(ValidationReport("model", ()), request).facts
    assert json.loads((run_dir / "report.json").read_text())["facts"] == facts
    assert facts["goodput"] == 0.75
    assert {name: share for name, share in facts["time_shares"].items() if share} == {
        "productive_training": 0.75, "program_startup": 0.25,
    }  # fmt: skip
    assert "training 75%, starting 25%" in (run_dir / "report.html").read_text()


def test_the_page_loads_itself_again_while_the_run_goes_on(tmp_path: Path) -> None:
    with live_run(str(tmp_path)) as show:
        note(phase="training")
        show()
        page = (tmp_path / "live.html").read_text()
        assert 'http-equiv="refresh" content="3"' in page and "<h1>Training</h1>" in page
    assert 'content="0; url=report.html"' in (tmp_path / "live.html").read_text()


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="wrong"), live_run(str(tmp_path)):
        raise ValueError(f"wrong {EVIL}")
    page = (tmp_path / "live.html").read_text()
    assert "<h1>Failed</h1>" in page and "wrong &lt;script&gt;" in page
    assert "refresh" not in page


def test_what_cannot_be_shown_fails_nobody(tmp_path: Path) -> None:
    before = os.dup(1)
    (tmp_path / "file").write_text("in the way of the folder")
    os.close(1)
    try:
        with live_run(str(tmp_path / "file")) as show:
            note(phase="training")
            show()
    finally:
        os.dup2(before, 1)
        os.close(before)
