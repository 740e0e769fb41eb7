"""What the watching threads read of the loop's thread, while the loop goes on."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchbus_launch import threads
from torchbus_launch.rank_position import find
from torchbus_launch.threads import calls_of, self_of

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "frames_of_threads.py"


def test_frames_of_a_running_thread_are_read_whole() -> None:
    """Python 3.10 and 3.11 die, or hang, where a collection comes in between."""
    subprocess.run([sys.executable, str(SCRIPT)], check=True, timeout=60)


class Batches:
    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> int:
        return sum(range(50))


def outlives() -> bool:
    """Whether what a loop has dropped is alive after it."""
    loop = [Batches()]
    dropped = weakref.ref(loop[0])
    next(loop[0])
    loop.clear()
    return dropped() is not None


@contextmanager
def looking(look: Callable[[int], object]) -> Iterator[None]:
    """Another thread looks at this one all the time, and is interrupted often."""
    interval, over, main = sys.getswitchinterval(), threading.Event(), threading.get_ident()

    def run() -> None:
        while not over.is_set():
            look(main)

    watching = threading.Thread(target=run)
    sys.setswitchinterval(1e-6)
    try:
        watching.start()
        yield
    finally:
        over.set()
        watching.join()
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    "look", [lambda main: find(0, None, 0, main), lambda main: self_of(main, 0, type)]
)
def test_looking_keeps_nothing_alive(look: Callable[[int], object]) -> None:
    """Ranks know by the end of an iterator that a pass is over, all at the same place."""
    with looking(look):
        assert not any(outlives() for _ in range(5_000))


def test_of_a_thread_that_has_ended_nothing_is_read() -> None:
    thread = threading.Thread()
    thread.start()
    thread.join()
    assert calls_of(thread.ident) == calls_of(None) == []
    assert self_of(thread.ident, 0, type) is None
    assert self_of(threading.get_ident(), 0, weakref.ref) is None  # not a method


def reads_in_a_fork() -> int:
    """The exit status of a forked process that reads frames, if it can."""
    child = os.fork()
    if child == 0:
        reads = threading.Thread(target=calls_of, args=[threading.main_thread().ident])
        reads.daemon = True
        reads.start()
        reads.join(10.0)
        os._exit(0 if not reads.is_alive() and gc.isenabled() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_process_forked_during_a_read_can_read_and_collects_garbage() -> None:
    begun, over = threading.Event(), threading.Event()

    def read() -> None:
        with threads._empty_collected():
            begun.set()
            over.wait(0.3)

    reader = threading.Thread(target=read)
    reader.start()
    begun.wait()
    assert reads_in_a_fork() == 0
    over.set()
    reader.join()
    assert gc.isenabled()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_fork_waits_until_native_threads_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has just finished a collective may hold a lock that the child waits for forever."""
    monkeypatch.setattr(threads, "SLEEP_WITHIN_S", 60.0)
    begun, measured, seconds = threading.Event(), threading.Event(), []

    def compute() -> None:
        path = f"/proc/self/task/{threading.get_native_id()}/comm"
        Path(path).write_text("pt_gloo_runloop")
        begun.set()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)  # without the GIL
        seconds.append(time.thread_time())
        measured.wait()

    thread = threading.Thread(target=compute)
    thread.start()
    begun.wait()
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    threads.let_native_threads_sleep()
    computed = time.clock_gettime(clock)
    measured.set()
    thread.join()
    assert computed > 0.9 * seconds[0]
