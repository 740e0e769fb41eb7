"""Good and bad runs, and what may stand in their files."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchbus_cli.main import main

Write = Callable[..., Path]
GOOD, BAD = "20260214-103000-good", "20260215-000000-bad"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"step": 3, "time_s": 1, "loss": 2}\n')
        file.truncate(10 << 30)


def nested(path: Path) -> None:
    path.write_text('{"a":' * 900 + "1" + "}" * 900)


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": fifo,
    "folder": Path.mkdir,
    "sparse": sparse,
    "nested": nested,
    "endless": link("/dev/zero"),
    "outside": link("/etc/passwd"),
    "itself": link("config.json"),
    "nowhere": link("gone"),
    "up": link("../20260214-103000-good/config.json"),
}


def fill(folder: Path, told: dict[str, Any]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in told.items():
        KINDS[content](folder / name) if isinstance(content, str) else (folder / name).write_bytes(
            content
        )


def called(*argv: str) -> tuple[int, str, str]:
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        return main(list(argv)), out.getvalue(), err.getvalue()
