"""A network link that loses and delays packets, for kernels without netem.

    python -m benchmarks._relay NEAR FAR

Makes two network devices (TAP; root) and passes what enters one on to the other. Prints "ready"
once both exist. Each line of standard input has the share of packets to lose from then on, and the
delay of the others in seconds. The devices end with this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time

_SET_NAME = 0x400454CA  # TUNSETIFF of linux/if_tun.h
_ETHERNET_FRAMES = 0x0002 | 0x1000  # IFF_TAP | IFF_NO_PI
_LONGEST_FRAME = 65536
_INPUT = 0


def main() -> None:
    """Passes frames on until standard input ends."""
    near, far = map(_device, sys.argv[1:])
    other = {near: far, far: near}
    print("ready", flush=True)
    loss, delay_s, drawn, numbers = 0.0, 0.0, random.Random(1), itertools.count()
    waiting: list[tuple[float, int, int, bytes]] = []  # due, number, device, frame
    while True:
        timeout_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for ready in select.select([near, far, _INPUT], [], [], timeout_s)[0]:
            if ready == _INPUT:
                if not (lines := os.read(_INPUT, 1024)):
                    return
                loss, delay_s = map(float, lines.splitlines()[-1].split())
            else:
                frame = os.read(ready, _LONGEST_FRAME)
                if drawn.random() >= loss:
                    due_s = time.monotonic() + delay_s
                    heapq.heappush(waiting, (due_s, next(numbers), other[ready], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            *_, device, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # the device is down: the packet is lost
                os.write(device, frame)


def _device(name: str) -> int:
    """Makes a device, and returns the file that receives and sends its frames."""
    file = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(file, _SET_NAME, struct.pack("16sH22x", name.encode(), _ETHERNET_FRAMES))
    return file


if __name__ == "__main__":
    main()
