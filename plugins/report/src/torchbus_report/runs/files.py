"""Opens the files of a run's folder as untrusted input.

Files outside the folder are not opened. Reading never blocks, and its amount is limited."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from torchbus_redaction.redactor import printable

MIB = 1 << 20
LONGEST_LINE, LONGEST_FILE, LONGEST_CONFIG = MIB, 256 * MIB, MIB


class Unreadable(Exception):
    """A file, or its rest, can't be read. The message says why."""


def opened(path: Path, folder: Path) -> BinaryIO:
    """Open a regular file inside the folder.

    Raises Unreadable for a pipe, a device, a link that leads out of the folder, and anything else
    that can't be read.
    """
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(os.path.realpath(folder)):
        raise Unreadable("is a link that leads out of the folder")
    try:
        descriptor = os.open(
            real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
        )
    except OSError as error:
        raise Unreadable(f"can't be read: {_message(error)}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unreadable("can't be read: it is not a regular file")
    return open(descriptor, "rb")


def whole(path: Path, folder: Path) -> bytes:
    """Read a small file. Raises Unreadable."""
    with opened(path, folder) as file:
        try:
            content = file.read(LONGEST_CONFIG + 1)
        except OSError as error:
            raise Unreadable(f"can't be read: {_message(error)}") from None
    if len(content) > LONGEST_CONFIG:
        raise Unreadable(f"is longer than {LONGEST_CONFIG // MIB} MiB")
    return content


def lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file from its current position on, with their line breaks.

    Raises Unreadable if the rest can't be read.
    """
    left = LONGEST_FILE - file.tell()
    while True:
        try:
            line = file.readline(LONGEST_LINE)
        except OSError as error:
            raise Unreadable(f"can't be read any further: {_message(error)}") from None
        left -= len(line)
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            raise Unreadable(
                f"has a line longer than {LONGEST_LINE // MIB} MiB: the rest is left out"
            )
        if left < 0:
            raise Unreadable(f"is longer than {LONGEST_FILE // MIB} MiB: the rest is left out")
        if not line:
            return
        yield line


def _message(error: OSError) -> str:
    return (
        "a link that leads nowhere"
        if error.errno == errno.ELOOP
        else error.strerror or type(error).__name__
    )


LONGEST = 2_000


def showable(text: str) -> str:
    """Escape control characters, marks of text direction and lone surrogates.

    Long texts are truncated.
    """
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}..."
    return printable(text) if not text.isascii() or not text.isprintable() else text


def is_number(value: object, limit: float) -> TypeGuard[int | float]:
    """Whether a value of JSON is a number, and not NaN, whose absolute value is at most a limit."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= limit


def shown(value: Any) -> Any:
    """Make every text in plain JSON safe to show."""
    if isinstance(value, dict):
        return {showable(str(key)): shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, int) and abs(value) > 10**300:
        return "a very large number"
    return showable(value) if isinstance(value, str) else value
