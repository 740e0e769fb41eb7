"""The processes of the ranks that this rank has started: their stderr, exit status and end."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from typing import IO

from torchbus_launch.broadcast_log import FairClock
from torchbus_launch.guard import DELIVER_AFTER_S, FORCED, KILL_AFTER_S
from torchbus_launch.terminal import say
from torchbus_redaction.redactor import redacted_output


class Child:
    """A rank that this one started.

    ``process`` is its handle if it runs the script again, or None if it was forked. ``errors`` is
    the file that receives its stderr.
    """

    def __init__(
        self, rank: int, pid: int, process: subprocess.Popen[bytes] | None, errors: IO[bytes] | None
    ) -> None:
        self.rank = rank
        self.pid = pid
        self._process = process
        self._errors = errors
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, minus the signal's number for a signal; None while it runs."""
        if self._status is None:
            self._status = (
                self._process.poll() if self._process is not None else self._poll_forked()
            )
        return self._status

    def _poll_forked(self) -> int | None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        return None if pid == 0 else os.waitstatus_to_exitcode(status)

    def signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def close(self) -> None:
        """Close the file that has its stderr."""
        if self._errors is not None:
            self._errors.close()

    def describe_exit(self) -> str:
        """Return how it ended, as a predicate for "rank 1 ..."."""
        status = self.poll()
        if status is None:
            return "still runs"
        return (
            f"was killed by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with exit status {status}"
        )

    def last_errors(self, max_chars: int = 8000) -> str:
        """Return the end of what it wrote to stderr."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return redacted_output(self._errors.read().decode(errors="replace")[-max_chars:])


def standard_input() -> int:
    """Open an input with nothing to read, and return its descriptor.

    The input is the terminal if there is one, opened for writing only, because some scripts ask for
    the terminal's size. Otherwise, it is the null device.
    """
    try:
        return os.open(os.ttyname(0), os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY)


def error_file() -> IO[bytes]:
    """Make an unnamed file, which disappears once the last process has closed it."""
    return tempfile.TemporaryFile()


def wait_for(children: list[Child], seconds: float) -> list[Child]:
    """Wait until all children have ended; return those that have not.

    This takes at most ``seconds``, or longer on a busy machine.
    """
    clock = FairClock(0.05)
    while (
        running := [child for child in children if child.poll() is None]
    ) and clock.seconds() < seconds:
        time.sleep(0.01)
    return running


def end(children: list[Child], grace_s: float) -> list[Child]:
    """Wait ``grace_s`` for children to exit, then send SIGTERM, then SIGKILL.

    Returns those that needed a signal.
    """
    stubborn = wait_for(children, grace_s)
    for child in stubborn:
        child.signal(signal.SIGTERM)
    killed = wait_for(stubborn, 2.0) if stubborn else []
    for child in killed:
        child.signal(signal.SIGKILL)
    wait_for(killed, 2.0)
    return stubborn


# the child's own guard ends it before this time, and reports its position
CHILD_GRACE_S = DELIVER_AFTER_S + KILL_AFTER_S + 3.0
ATEXIT_GRACE_S = 30.0  # after a success, a rank may have work to do in its atexit handlers


def end_children(children: list[Child], in_peace: bool, cause: str = "") -> None:
    """Wait for the children, end those that stay, and print what their guards wrote about it.

    ``cause`` says why the job ends, if nothing has printed that yet. It is printed first.
    """
    late = wait_for(children, CHILD_GRACE_S)
    if late and in_peace:
        ranks = ", ".join(str(child.rank) for child in late)
        say(
            f"torchbus: waiting up to {ATEXIT_GRACE_S:.0f} s for rank {ranks}, which still runs"
            " after the block"
        )
        wait_for(late, ATEXIT_GRACE_S)
    stubborn = end(late, 0.0)
    if stubborn and cause:
        say(f"torchbus: {cause}")
    for child in stubborn:
        say(f"torchbus: rank {child.rank} did not exit after the block and {child.describe_exit()}")
    for child in children:
        reported = child.last_errors()
        start = reported.find(f"torchbus: rank {child.rank} {FORCED}")
        if start >= 0:
            say(reported[start:])
        child.close()
