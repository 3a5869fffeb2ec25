"""The live run: pages, terminal and notebook, and what happens where nothing can be shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer._core.event_files import scalars_by_step
from generic_trainer._core.progress import Progress, ProgressReader, note, recording
from generic_trainer._run.live import LiveRun, run_sections, run_view
from generic_trainer._run.live.comparison import ComparedModels
from generic_trainer._run.live.page import live_page, render, scalars_reader
from generic_trainer._run.live.terminal import StatusLine, _drawn, text_of
from generic_trainer._run.live.view import View, duration, view_of
from generic_trainer.validation import Result, ValidationReport

EVIL = "<script>alert(1)</script>"


def write_run(run_dir: Path, *, name: str = "accuracy", phase: str = "training") -> None:
    with recording(str(run_dir), "run") as log:
        log.write(phase=phase, at=1000.0, tasks={"chief": "running", f"worker 1{name}": "done"})
        log.write(read=f"3,000 examples of {name}", reader_batch_size=32, at=1000.5)
        for step in range(20, 420, 20):
            metrics = {"loss": 5 / step, "val_loss": 6 / step, name: 1 - 1 / step}
            log.write(at=1000.0 + step / 10, step=step, steps=1000, epoch=1, epochs=2, cpu=0.7,
                      memory_mb=900 + step, gpu=0.4, bound="input", metrics=metrics)  # fmt: skip
        log.write(at=1042.0, restart=f"{name} was lost", checkpoint=400)


def view(run_dir: Path) -> View:
    progress = ProgressReader(str(run_dir)).look()
    return view_of(progress, str(run_dir), scalars_by_step(str(run_dir)))


def test_a_view_says_how_a_run_is(tmp_path: Path) -> None:
    write_run(tmp_path)
    shown = view(tmp_path)
    assert shown.headline == "Training" and shown.share == 0.4
    assert dict(shown.tiles) == {
        "step": "400 of 1,000", "epoch": "1 of 2", "examples/s": "320", "so far": "42 s",
        "left": "1 min 0 s", "CPU": "70%", "GPU": "40%", "memory": "1,300 MiB", "restarts": "1",
    }  # fmt: skip
    assert [chart.name for chart in shown.charts] == [
        "loss", "accuracy", "examples/s", "busy", "memory in MiB"
    ]  # fmt: skip
    assert [line.label for line in shown.charts[0].lines] == ["", "validation"]
    assert shown.bound and shown.bound[0].startswith("Input-bound")
    assert text_of(shown).startswith("Training: 40%, step 400 of 1,000, epoch 1 of 2, loss 0.0125")
    assert dict(shown.facts)["Checkpoints"] == "1, the last at step 400"


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0], [float("nan"), float("inf"), 1e305]])
def test_curves_of_any_numbers(values: list[float]) -> None:
    points = [(float(step), value) for step, value in enumerate(values)]
    shown = view_of(Progress(curves={"loss": points}), "run", {"x": points})
    assert "nan" not in live_page(shown, is_over=False, report=False)


def test_scalars_are_read_again_when_they_grow(tmp_path: Path) -> None:
    read = scalars_reader(str(tmp_path))
    assert read() == {}
    for folder in (tmp_path, tmp_path / "train" / "deep"):
        with tf.summary.create_file_writer(str(folder)).as_default():
            tf.summary.scalar("loss", 0.5, 3)
    assert read() == {"loss": [(3, 0.5)], "train/deep/loss": [(3, 0.5)]}
    assert read() is read()


def test_durations() -> None:
    assert [duration(each) for each in (3, 61, 7300)] == ["3 s", "1 min 1 s", "2 h 1 min"]


def test_pages_escape_what_others_have_named(tmp_path: Path) -> None:
    run_dir = tmp_path / EVIL.replace("/", "")
    write_run(run_dir, name=EVIL, phase=EVIL)
    (run_dir / "training.log").write_text(f"{EVIL}\n")
    compared = ComparedModels((EVIL, EVIL), ((EVIL, (EVIL, EVIL)),))
    sections = run_sections(str(run_dir), compared)
    report = ValidationReport(EVIL, (Result(EVIL, "pass", EVIL),)).to_html(sections)
    (run_dir / "report.html").write_text(report)
    pages = [
        report,
        live_page(view(run_dir), is_over=False, report=False),
        render("cell.html", view=view(run_dir)),
        run_view(str(run_dir)),
    ]
    for page in pages:
        assert "<script" not in page and "script" in page
    assert len(_drawn(view(run_dir), 40)) < 120


def test_the_page_loads_itself_again_while_the_run_goes_on(tmp_path: Path) -> None:
    with LiveRun(str(tmp_path)) as live:
        note(phase="training")
        live.show()
        page = (tmp_path / "live.html").read_text()
        assert 'http-equiv="refresh" content="3"' in page and "<h1>Training</h1>" in page
    assert 'content="0; url=report.html"' in (tmp_path / "live.html").read_text()


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="wrong"), LiveRun(str(tmp_path)):
        raise ValueError(f"wrong {EVIL}")
    page = (tmp_path / "live.html").read_text()
    assert "The run has failed" in page and "wrong &lt;script&gt;" in page
    assert "refresh" not in page


def test_what_cannot_be_shown_fails_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    monkeypatch.setenv("TERM", "xterm")
    before = os.dup(1)
    (tmp_path / "file").write_text("in the way of the folder")
    os.close(1)
    try:
        with LiveRun(str(tmp_path / "file")) as live, live.training():
            note(phase="training")
            live.show()
    finally:
        os.dup2(before, 1)
        os.close(before)


def test_the_line_lies_below_the_output_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    read_end, write_end = os.pipe()
    monkeypatch.setattr(os, "dup", lambda descriptor: write_end)
    line = StatusLine()
    line.show(view(tmp_path), Progress())  # not yet
    with line.shown():
        line.show(view(tmp_path), Progress())
    line.close()
    shown = os.read(read_end, 1 << 16).decode()
    os.close(read_end)
    assert shown.startswith("\x1bD\x1b[A\x1b7\x1b[B\r\x1b[2K") and shown.endswith("\x1b8\x1b[J")
    assert "400 of 1,000" in shown and "\n" not in shown
