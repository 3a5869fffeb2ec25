"""The end of a worker's output is noticed in whatever Ray prints."""

from __future__ import annotations

import sys
import threading

import pytest

from generic_trainer.launchers._ray.output import end_of_output, shown_output


def test_both_streams_of_the_worker_are_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {"stdout": "(chief pid=1) ", "stderr": "\x1b[36m(chief pid=1)\x1b[0m "}
    with shown_output() as shown:
        waiting = threading.Thread(target=shown.wait_for, args=("chief",))
        waiting.start()
        print(f"(worker 0 pid=2) {end_of_output('worker 0')}")
        for name, prefix in lines.items():
            assert waiting.is_alive()
            print(f"{prefix}{end_of_output('chief')}", file=getattr(sys, name))
        waiting.join(4.0)  # it would give up after 5
        assert not waiting.is_alive()
    assert capsys.readouterr().out.count("had to say") == 2


def test_streams_are_what_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with shown_output():
        assert sys.stdout.isatty() == before[0].isatty()
        sys.stdout.flush()
    assert (sys.stdout, sys.stderr) == before
