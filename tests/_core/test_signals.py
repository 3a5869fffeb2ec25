"""SIGTERM that is noted."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from generic_trainer._core.signals import PREEMPTED_EXIT_CODE, SigtermNotice


def terminate() -> None:
    """Sends this process SIGTERM and waits until Python has handled it."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)


def test_it_is_noted_while_the_notice_is_open() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SigtermNotice() as notice:
        assert not notice.received
        terminate()
        assert notice.received
        terminate()  # another one changes nothing
    assert signal.getsignal(signal.SIGTERM) == before
    notice.close()
    assert signal.getsignal(signal.SIGTERM) == before


def test_saving_in_time_cancels_the_exit() -> None:
    with SigtermNotice(grace_s=300) as notice:
        terminate()
        assert notice.received
    alarms = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for alarm in alarms:
        alarm.join(timeout=200)  # a cancelled one ends at once
        assert not alarm.is_alive()


@pytest.mark.parametrize("hangs", ["time.sleep(60)", "[None for _ in iter(int, 1)]"])
def test_a_process_that_hangs_ends_after_its_grace_period(hangs: str) -> None:
    script = f"""
import os, signal, time
from generic_trainer._core.signals import SigtermNotice
with SigtermNotice(grace_s=0.2):
    os.kill(os.getpid(), signal.SIGTERM)
    {hangs}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == PREEMPTED_EXIT_CODE == 143
    assert "within 0.2 s after SIGTERM" in done.stderr


def test_notices_that_are_closed_out_of_order_leave_no_handler_behind() -> None:
    before = signal.getsignal(signal.SIGTERM)
    first, second = SigtermNotice(), SigtermNotice()
    first.close()
    os.kill(os.getpid(), signal.SIGTERM)
    assert second.received and not first.received
    second.close()
    assert signal.getsignal(signal.SIGTERM) == before
