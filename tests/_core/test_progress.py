"""Progress of a run, written by several processes and read while they write."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from generic_trainer._core.progress import ProgressLog, ProgressReader, note, recording


def test_lines_of_several_writers_come_together(tmp_path: Path) -> None:
    reader = ProgressReader(str(tmp_path))
    assert reader.look().phase == ""
    another = recording(str(tmp_path / "another"), "run")
    with ThreadPoolExecutor(1) as thread, recording(str(tmp_path), "run"):
        note(phase="training", tasks={"chief": "running"})
        with recording(str(tmp_path), "chief"):
            thread.submit(another.__enter__).result()
            note(step=10, steps=100, metrics={"loss": 2.0}, reader_batch_size=32)
            assert reader.look().left_s is None
            with ThreadPoolExecutor(1) as saves:
                saves.submit(note, step=20, metrics={"loss": 1.0}, checkpoint=20)
        note(restart="worker 1 was lost")
        note(step=10, metrics={"loss": 1.5})
    another.__exit__(None, None, None)
    note(phase="nobody's")
    progress = reader.look()
    assert progress.phase == "training" and progress.tasks == {"chief": "running"}
    assert progress.curves == {"loss": [(10, 1.5)]}  # what was lost is gone
    assert progress.checkpoints == [20] and progress.restarts == ["worker 1 was lost"]
    assert ProgressReader(str(tmp_path)).look() == progress


def test_speeds_are_those_between_two_looks(tmp_path: Path) -> None:
    reader = ProgressReader(str(tmp_path))
    with recording(str(tmp_path), "chief") as log:
        log.write(phase="training", at=100.0, reader_batch_size=32)
        for second, step in enumerate((0, 10, 20, 5, 15)):  # the workers were started again
            log.write(at=101.0 + second, step=step, steps=100)
        log.write(at=105.1, step=20, batch_size=64)
    progress = reader.look()
    assert progress.steps_per_s == [(2, 10), (3, 10), (5, 10)]
    assert [speed for _, speed in progress.examples_per_s] == [320, 320, 320]
    assert progress.left_s == 8


def test_what_is_half_written_comes_later_and_damage_is_left_out(tmp_path: Path) -> None:
    log = ProgressLog(str(tmp_path), "run")
    log.write(phase="training")
    path, reader = tmp_path / "progress-run.jsonl", ProgressReader(str(tmp_path))
    with path.open("ab") as file:
        file.write(b'[]\n{"at": "x"}\n\xff\n{"at": 1, "metrics": 3}\n{"at": 9e9, "st')
        file.flush()
        assert reader.look().step == 0
        file.write(b'ep": 7}\n')
    assert reader.look().step == 7 and reader.look().phase == "training"


def test_nothing_is_raised_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with recording(str(tmp_path / "file"), "run"), recording("", "none"):
        note(phase="training")
    with recording("nowhere://bucket", "run"):
        note(phase="training", value=object())


def test_an_object_store_has_all_lines_at_the_end(tmp_path: Path) -> None:
    for step in (1, 2):  # the second attempt continues the file of the first
        with recording(f"ram://{tmp_path}", "chief"):
            note(step=step, metrics={"loss": 1.0 / step})
    curves = ProgressReader(f"ram://{tmp_path}").look().curves
    assert curves == {"loss": [(1, 1.0), (2, 0.5)]}


def test_time_of_a_training_is_divided_by_what_it_went_into(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"at": 100, "phase": "packing"},
        {"at": 108, "phase": "training"},
        {"at": 110, "step": 1},  # 10 s of start
        {"at": 128, "step": 10, "checkpoint_s": 2},
        {"at": 129, "checkpoint": 10},
        {"at": 130, "phase": "validating"},
        {"at": 136, "phase": "training"},  # 6 s of evaluation
        {"at": 146, "step": 15},
        {"at": 150, "restart": "worker 1 was lost"},  # 28 s for 15 steps, of which 5 are lost
        {"at": 155, "restart": "worker 1 was lost again"},
        {"at": 160, "step": 11},  # 14 s of recovery
        {"at": 180, "step": 20},
        {"at": 190, "phase": "checks"},
        {"at": 199, "phase": "publishing"},
    ]
    with recording(str(tmp_path), "run") as log:
        for line in lines[:2]:
            log.write(**line)
        assert ProgressReader(str(tmp_path)).look().time_shares == {}
        for line in lines[2:]:
            log.write(**line)
    progress = ProgressReader(str(tmp_path)).look()
    assert {name: round(seconds, 2) for name, seconds in progress.spent_s.items()} == {
        "productive_training": 38.67,
        "program_startup": 10.0,
        "evaluation": 6.0,
        "unproductive_checkpoint_save_time": 2.0,
        "wasted_progress_from_disruption": 9.33,
        "infrastructure_recovery_from_disruption": 14.0,
        "other": 10.0,
    }
    assert progress.time_shares["productive_training"] == 0.4296
