"""Runs Python scripts in forks of a process that has imported torch, so they start fast."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torchbus_testing.processes import take_signals
from torchbus_testing.scripts import Result, write_script


class ForkServer:
    """Runs scripts one after another, each in a fork of one process that has imported torch.

    The server is a context manager. A script has its own ``__main__``, arguments and working
    directory, and one thread. Its environment, and settings that Python reads when it starts, such
    as PYTHONWARNINGS, are those of the process that made the server.
    """

    def __init__(self, *preloaded: str) -> None:
        command = [sys.executable, "-m", "torchbus_testing.fork_process", *preloaded]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=take_signals(),
        )

    def run(
        self,
        source: str | Path,
        *args: object,
        cwd: str | Path | None = None,
        timeout_s: float = 60.0,
        kill_after_s: float | None = None,
        whom: int = 0,
    ) -> Result:
        """Run a script like ``run_script``.

        After ``kill_after_s`` seconds, SIGKILL is sent to the script if ``whom`` is 0, or else to
        its ``whom``-th child, counted from 1. Raises TimeoutError if the script does not end within
        ``timeout_s`` seconds.
        """
        with tempfile.TemporaryDirectory() as mine:
            script = source if isinstance(source, Path) else write_script(mine, source)
            folder = Path(cwd or mine).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            places = {"script": str(script.resolve()), "folder": str(folder), "output_folder": mine}
            found = self._ask(
                args=[str(arg) for arg in args],
                timeout_s=timeout_s,
                kill_after_s=kill_after_s,
                whom=whom,
                **places,
            )
        if found.pop("late"):
            raise TimeoutError(
                f"no end within {timeout_s:g} s\n--- stdout\n{found['stdout']}\n---"
                f" stderr\n{found['stderr']}"
            )
        return Result(**found)

    def _ask(self, **request: object) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer: dict[str, object] = json.loads(self._process.stdout.readline())
            return answer
        except BaseException:  # such as a time limit; otherwise the next script gets this answer
            self._process.terminate()
            self._process.wait()
            raise

    @property
    def is_over(self) -> bool:
        """Whether the server has ended, and can't run another script."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process of the server."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@functools.cache
def _server(preloaded: tuple[str, ...]) -> list[ForkServer]:
    """Return a list for this process's server that has imported these modules; first empty."""
    return []


def _running(preloaded: tuple[str, ...]) -> ForkServer:
    held = _server(preloaded)
    if not held or held[0].is_over:
        held[:] = [ForkServer(*preloaded)]
        atexit.register(held[0].close)
    return held[0]


def fork_script(
    source: str | Path,
    *args: object,
    cwd: str | Path | None = None,
    timeout_s: float = 60.0,
    kill_after_s: float | None = None,
    whom: int = 0,
    preloaded: tuple[str, ...] = (),
) -> Result:
    """Run a script like ``run_script``, with one ``ForkServer`` for all tests of this process.

    The other options are those of ``ForkServer.run``. ``preloaded`` are modules that a separate
    server imports once. Raises TimeoutError after ``timeout_s`` seconds.
    """
    server = _running(preloaded)
    return server.run(
        source, *args, cwd=cwd, timeout_s=timeout_s, kill_after_s=kill_after_s, whom=whom
    )
