"""Scripts in processes that begin in no time."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ran:
    status: int
    stdout: str
    stderr: str
    seconds: float

    def ok(self) -> Ran:
        assert self.status == 0, f"exit status {self.status}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        return self


Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """``run(source or path, *args, folder=, kill_after_s=None, whom=0)`` of a script."""
    server = subprocess.Popen([sys.executable, str(HERE / "fork_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    sources = tmp_path_factory.mktemp("sources")

    def call(source: str | Path, *args: Any, folder: Path, **options: Any) -> Ran:
        assert server.stdin is not None and server.stdout is not None
        if isinstance(source, str):
            path = sources / f"script{abs(hash(source))}.py"
            path.write_text(textwrap.dedent(source))
        else:
            path = source
        folder.mkdir(parents=True, exist_ok=True)
        request = {"script": str(path), "args": [str(arg) for arg in args], "folder": str(folder), **options}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return Ran(**json.loads(server.stdout.readline()))

    yield call
    server.stdin.close()
    server.wait()
    server.stdout.close()
