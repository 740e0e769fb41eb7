"""A terminal: a pty, and an emulator that says what is on its screen."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pty
import runpy
import select
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pyte
import pytest

from torchbus_testing.scripts import write_script

ROWS = 16
END_OF_BAR = b"\x1b[1A\r"
IN_TERMINAL = """
import os, sys
os.environ["TERM"] = "xterm-256color"
for number in range(3):
    os.dup2(os.open({name!r}, os.O_RDWR), number)
sys.stdout, sys.stderr = (open(number, "w", buffering=1, encoding="utf-8", closefd=False) for number in (1, 2))
"""


@dataclass
class Shown:
    """What a terminal showed: its ``lines`` at the end, the lines ``seen`` whenever a bar had been
    drawn, and the ``bars`` among them.
    """

    status: int | None
    lines: list[str]
    bars: list[str]
    seen: list[str]


@pytest.fixture
def terminal(tmp_path: Path) -> Callable[..., Shown]:
    """``terminal(source, columns)`` runs a script in a terminal of that width: forked from a server
    that has torch imported already.
    """

    def run(source: str, columns: int = 80) -> Shown:
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        path = write_script(tmp_path, IN_TERMINAL.format(name=os.ttyname(follower)) + source)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torchbus_progress", "torch._dynamo", "tqdm"])
        process = context.Process(target=runpy.run_path, args=(str(path),))
        process.start()
        try:
            return _watch(leader, process, columns)
        finally:
            process.kill()
            process.join()
            os.close(leader)
            os.close(follower)

    return run


def _watch(leader: int, process: ForkServerProcess, columns: int) -> Shown:
    screen, seen, rest, alive = pyte.Screen(columns, ROWS), [], b"", True
    stream = pyte.ByteStream(screen)
    while alive or select.select([leader], [], [], 0)[0]:
        if select.select([leader], [], [], 0.05)[0]:
            *drawn, rest = (rest + os.read(leader, 65536)).split(END_OF_BAR)
            for data in drawn:
                stream.feed(data + END_OF_BAR)
                seen += [line.rstrip() for line in screen.display if line.strip()]
        alive = process.is_alive()
    process.join()
    stream.feed(rest)
    lines = "\n".join(line.rstrip() for line in screen.display).rstrip().splitlines()
    return Shown(process.exitcode, lines, [line for line in seen if "━" in line], seen)
