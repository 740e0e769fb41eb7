"""The process of a ``ForkServer``, which has imported torch, and forks for each script.

The process reads one JSON object per line, the arguments of ``run``. It answers with one JSON
object, the fields of a ``Result``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from torchbus.bus import discovery
from torchbus.bus.selection import default_strategy
from torchbus.compat.torch_names import compiler

from torchbus_testing.compat import finalizers, run_exit_functions
from torchbus_testing.processes import kill, stretched

ORPHANS_S = 8.0
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def preload(names: list[str]) -> None:
    """Import the modules that most scripts import, and those with these names."""
    compiler()
    usual = discovery.installed("strategy").get(default_strategy())
    plugins = discovery.installed("plugin")
    companions = () if usual is None else getattr(discovery.load(usual), "companions", ())
    beside = map(plugins.get, companions)
    for entry in [*discovery.every("always"), *discovery.every("service"), *beside]:
        if entry is not None:
            discovery.load(entry)
    with silent_answers():
        for name in names:
            importlib.import_module(name)
    for finalizer in finalizers(weakref.finalize):
        finalizer.atexit = False  # each script would dissolve torch's libraries of operators
    gc.freeze()  # so that a session does not search torch's objects


@contextlib.contextmanager
def silent_answers() -> Iterator[None]:
    """Send prints to stderr inside the block, because the answers are on stdout."""
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(answers, 1)
        os.close(answers)


def run(
    script: str,
    args: list[str],
    folder: str,
    output_folder: str,
    timeout_s: float,
    kill_after_s: float | None,
    whom: int,
) -> dict[str, Any]:
    """Run a script in a fork; return the fields of its result.

    ``output_folder`` is the folder for the files with its stdout and stderr.
    """
    outputs = [Path(output_folder, name) for name in ("stdout", "stderr")]
    # the files exist even if the script is killed immediately
    files = [os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC) for path in outputs]
    begun_s = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        become(Path(script), args, Path(folder), *files)
    for file in files:
        os.close(file)
    with ended_with_us(pid):
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            kill(process_of(pid, whom))
        status, late = wait(pid, timeout_s)
    seconds = time.monotonic() - begun_s
    stdout, stderr = (path.read_text(errors="replace") for path in outputs)
    return {
        "status": status,
        "stdout": stdout,
        "stderr": stderr,
        "seconds": seconds,
        "orphans": wait_for_group(pid),
        "late": late,
    }


@contextlib.contextmanager
def ended_with_us(pid: int) -> Iterator[None]:
    """End the script if this process gets a signal to end inside the block."""
    try:
        yield
    except BaseException:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def process_of(pid: int, whom: int) -> int:
    """Return the process id of a script, or of its ``whom``-th child, counted from 1."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    pids = [pid, *map(int, children.read_text().split())] if children.exists() else [pid]
    return pids[min(whom, len(pids) - 1)]


def wait(pid: int, timeout_s: float) -> tuple[int, bool]:
    """Wait for a script; return its exit status, and whether it was killed for being late."""
    begun_s = time.monotonic()
    while (passed_s := time.monotonic() - begun_s) < timeout_s or passed_s < stretched(timeout_s):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), False
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), True


def wait_for_group(pid: int) -> list[str]:
    """Wait until every process of the script has ended, and name those that had to be killed.

    The next script must not run beside a process of this one.
    """
    begun_s = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < begun_s + stretched(ORPHANS_S):
            reap_orphans()
            os.killpg(pid, 0)
            time.sleep(0.005)
        os.killpg(pid, signal.SIGKILL)
        return [f"in process group {pid}"]
    return []


def adopt_orphans() -> None:
    """Become the parent of orphaned processes of scripts: process 1 may leave them for seconds."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans() -> None:
    """Let processes that have ended disappear."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become(script: Path, args: list[str], folder: Path, out: int, err: int) -> NoReturn:
    """Turn this forked process into one that runs the script as ``__main__``."""
    status = 1
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        for number, fd in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(fd, number)
        os.chdir(folder)
        torch.set_num_threads(1)
        main = types.ModuleType("__main__")
        main.__file__ = str(script)
        sys.modules["__main__"] = main
        sys.argv, sys.path[0] = [str(script), *args], str(script.parent)
        if any(script.parent.glob("*-info")):  # packages beside the script
            discovery.offers.cache_clear()
        exec(compile(script.read_text(), script, "exec"), main.__dict__)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        run_exit_functions()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def stop(number: int, frame: object) -> NoReturn:
    """End together with the running script, whose caller no longer waits."""
    raise SystemExit


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    adopt_orphans()
    preload(sys.argv[1:])
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)
