"""The process of a ``ForkServer``: it has torch imported, and forks for each script.

Reads a JSON object per line, the arguments of ``run``, and answers with one, the fields of a ``Result``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch._dynamo

import torchbus  # noqa: F401
from torchbus.testing.processes import kill

ORPHANS_S = 8.0


def run(script: str, args: list[str], folder: str, told: str, timeout_s: float, kill_after_s: float | None, whom: int) -> dict[str, Any]:
    """``told`` is the folder of the files that the script writes its stdout and stderr to."""
    outputs = [Path(told, name) for name in ("stdout", "stderr")]
    files = [os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC) for path in outputs]  # there even if it is killed at once
    begun_s = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        become(Path(script), args, Path(folder), *files)
    for file in files:
        os.close(file)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        children = Path(f"/proc/{pid}/task/{pid}/children")
        pids = [pid, *map(int, children.read_text().split())] if children.exists() else [pid]
        kill(pids[min(whom, len(pids) - 1)])
    status, late = wait(pid, begun_s + timeout_s)
    seconds = time.monotonic() - begun_s
    stdout, stderr = (path.read_text(errors="replace") for path in outputs)
    return {"status": status, "stdout": stdout, "stderr": stderr, "seconds": seconds, "orphans": wait_for_group(pid), "late": late}


def wait(pid: int, deadline: float) -> tuple[int, bool]:
    """The exit status, and whether it was killed for being late."""
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), False
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), True


def wait_for_group(pid: int) -> list[str]:
    """Until every process of the script's has ended, for the next run must not meet one; those that had to be killed."""
    deadline = time.monotonic() + ORPHANS_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(pid, 0)
            time.sleep(0.005)
        os.killpg(pid, signal.SIGKILL)
        return [f"in process group {pid}"]
    return []


def become(script: Path, args: list[str], folder: Path, out: int, err: int) -> NoReturn:
    """Turn this process, just forked, into one that runs the script as ``__main__``."""
    status = 1
    try:
        for number, fd in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(fd, number)
        os.chdir(folder)
        torch.set_num_threads(1)
        main = types.ModuleType("__main__")
        main.__file__ = str(script)
        sys.modules["__main__"] = main
        sys.argv, sys.path[0] = [str(script), *args], str(script.parent)
        exec(compile(script.read_text(), script, "exec"), main.__dict__)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)
