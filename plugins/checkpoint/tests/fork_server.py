"""Runs scripts, each in a forked process of a process that has torch imported: for tests that start many.

Reads a JSON object per line, ``{"script", "args", "folder", "kill_after_s", "whom"}``, and answers with one: ``{"status", "stdout",
"stderr", "seconds"}``. ``whom`` is the process to send SIGKILL to: 0 is the script's own, 1 its first child and so on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torchbus  # noqa: F401

import torchbus_checkpoint  # noqa: F401

GROUP_ENDS_WITHIN_S = 60.0


def run(script: str, args: list[str], folder: str, kill_after_s: float | None = None, whom: int = 0) -> dict[str, Any]:
    paths = [Path(folder, f".{name}") for name in ("stdout", "stderr")]
    begun_s = time.monotonic()
    pid = os.fork()
    if pid == 0:
        become(script, args, folder, paths)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        children = Path(f"/proc/{pid}/task/{pid}/children")
        pids = [pid, *map(int, children.read_text().split())] if children.exists() else [pid]
        kill(pids[min(whom, len(pids) - 1)])
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = time.monotonic() - begun_s
    wait_for_group(pid)
    return {"status": status, "seconds": seconds, "stdout": paths[0].read_text(), "stderr": paths[1].read_text()}


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_for_group(pid: int) -> None:
    """Until every process of the script's has ended: the next run must not meet one."""
    deadline = time.monotonic() + GROUP_ENDS_WITHIN_S
    try:
        while time.monotonic() < deadline:
            os.killpg(pid, 0)
            time.sleep(0.01)
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def become(script: str, args: list[str], folder: str, paths: list[Path]) -> None:
    """Run the script as ``__main__``; does not return."""
    status = 1
    try:
        os.setsid()
        for number, path in enumerate(paths, 1):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        os.chdir(folder)
        torch.set_num_threads(1)
        main = types.ModuleType("__main__")
        main.__file__ = script
        sys.modules["__main__"] = main
        sys.argv = [script, *args]
        exec(compile(Path(script).read_text(), script, "exec"), main.__dict__)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for line in sys.stdin:
        answer = json.dumps(run(**json.loads(line)))
        sys.__stdout__.write(answer + "\n")
        sys.__stdout__.flush()
