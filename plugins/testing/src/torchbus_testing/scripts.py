"""Runs commands and Python scripts in separate processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchbus_testing.processes import (
    MARKER,
    kill,
    marked,
    stretched,
    take_signals,
    until_lost,
)


@dataclass(frozen=True)
class Result:
    """How a script ended.

    ``status`` is the exit status of the started process, or minus the number of the signal that
    ended it. ``seconds`` is the time until the last of its processes had ended. ``orphans`` are the
    commands of processes that outlived it until they were killed.
    """

    status: int
    stdout: str
    stderr: str
    seconds: float
    orphans: list[str]

    def ok(self, status: int = 0) -> Result:
        """Return this result, or raise AssertionError with everything that the script wrote."""
        assert self.status == status and not self.orphans, (
            f"exit status {self.status} (expected {status}) after {self.seconds:.1f} s, orphans:"
            f" {self.orphans or 'none'}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        )
        return self

    def json(self) -> Any:
        """Return the JSON value in the script's last line; AssertionError if the script failed."""
        return json.loads(self.ok().stdout.splitlines()[-1])


class Script:
    """A running command, as ``start`` returns it.

    It is a context manager that leaves no process behind.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str | None],
        cwd: str | Path,
        stdin: str | None,
    ) -> None:
        self.marker = uuid.uuid4().hex
        changed = {**os.environ, "PYTHONUNBUFFERED": "1", **env, MARKER: self.marker}
        self._outputs = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(2)]
        self._begun = time.monotonic()
        self._process = subprocess.Popen(
            command,
            env={name: value for name, value in changed.items() if value is not None},
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=self._outputs[0],
            stderr=self._outputs[1],
            text=True,
            start_new_session=True,
            preexec_fn=take_signals(),
        )
        if stdin is not None and self._process.stdin is not None:
            self._process.stdin.write(stdin)
            self._process.stdin.close()

    @property
    def pid(self) -> int:
        """The process id of the command."""
        return self._process.pid

    def send(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or to its process group, as a terminal does on Ctrl-C."""
        (os.killpg if group else os.kill)(self._process.pid, number)

    def wait(self, timeout_s: float = 60.0, orphans_s: float = 8.0) -> Result:
        """Wait for the command, then at most ``orphans_s`` for processes that it left behind.

        Both times are for an idle machine, and are extended under load. If the command does not
        end, all of its processes are killed. Then this raises TimeoutError with the output.
        """
        status = self._status(timeout_s)
        if status is None:
            self.kill()
            stdout, stderr = self._written()
            raise TimeoutError(
                f"no end within {timeout_s:g} s\n--- stdout\n{stdout}\n--- stderr\n{stderr}"
            )
        left = until_lost(self.marker, orphans_s)
        seconds = time.monotonic() - self._begun
        self.kill()
        return Result(status, *self._written(), seconds, left)

    def _status(self, timeout_s: float) -> int | None:
        begun_s = time.monotonic()
        while (left_s := begun_s + stretched(timeout_s) - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(left_s)
        return None

    def kill(self) -> None:
        """Kill the command and everything that it started."""
        if self._process.poll() is None:
            self._process.kill()
        for pid in marked(self.marker):
            kill(pid)
        self._process.wait()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        for output in self._outputs:
            output.close()

    def _written(self) -> tuple[str, str]:
        for output in self._outputs:
            output.seek(0)
        stdout, stderr = (output.read() for output in self._outputs)
        return stdout, stderr


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: str | Path = ".",
    stdin: str | None = None,
) -> Script:
    """Start a command.

    ``env`` has changes of this process's environment; None removes a variable.
    """
    return Script(command, env or {}, cwd, stdin)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: str | Path = ".",
    stdin: str | None = None,
    timeout_s: float = 60.0,
) -> Result:
    """Run a command to its end; see ``start`` and ``Script.wait``."""
    with start(command, env=env, cwd=cwd, stdin=stdin) as script:
        return script.wait(timeout_s)


def run_script(
    source: str | Path,
    *args: object,
    env: Mapping[str, str | None] | None = None,
    cwd: str | Path | None = None,
    timeout_s: float = 60.0,
) -> Result:
    """Run a Python script to its end.

    ``source`` is the text of the script, which may be indented as a whole, or its path. ``cwd`` is
    by default a temporary folder, in which a text is the file ``script.py``.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = source if isinstance(source, Path) else write_script(folder, source)
        return run(
            [sys.executable, str(path), *map(str, args)],
            env=env,
            cwd=cwd or folder,
            timeout_s=timeout_s,
        )


def write_script(folder: str | Path, source: str, name: str = "script.py") -> Path:
    """Write the text of a script without its common indentation; return its path."""
    path = Path(folder, name)
    path.write_text(textwrap.dedent(source))
    return path
