"""Read a URL: its file system, its path there, and the local folder that goes with it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from torchbus.plugin import UsageError

EXTRA = 'pip install "torchbus-checkpoint[remote]"'
COLLAPSED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")


def is_url(place: object) -> bool:
    """Whether it is a URL such as ``s3://bucket/run``. Raises UsageError for ``Path(url)``."""
    if isinstance(place, os.PathLike) and COLLAPSED.match(os.fspath(place)):
        raise UsageError(
            f"{place!r} was a URL: pass it as a string, because Path turns :// into :/"
        )
    return isinstance(place, str) and "://" in place


def shown(url: str) -> str:
    """Return the URL without its password."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", url)


def local_folder(url: str) -> Path:
    """Return ``checkpoints/s3/bucket/run`` for ``s3://bucket/run``, in the working directory."""
    words = re.split(r"[/\\]+|:+/*", re.sub(r"://[^/@]*@", "://", url).partition("?")[0])
    return Path(
        "checkpoints",
        *(re.sub(r"[^0-9A-Za-z_.-]+", "_", word) for word in words if word.strip(".")),
    )


def refuse_unknown(url: str) -> None:
    """Raise UsageError if a package is missing, or if fsspec does not know such URLs.

    This starts no thread: the session may fork later.
    """
    try:
        from fsspec import get_filesystem_class
    except ImportError:
        raise UsageError(f"checkpoint={shown(url)!r} needs fsspec: {EXTRA}") from None
    for part in url.split("::"):
        try:
            get_filesystem_class(part.partition("://")[0])
        except ImportError as error:
            raise UsageError(
                f"checkpoint={shown(url)!r} needs a package that is not installed: {EXTRA}"
                f" ({error})"
            ) from None
        except ValueError as error:
            raise UsageError(f"checkpoint={shown(url)!r}: {error}") from None


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system, and the path in it."""
    from fsspec.core import url_to_fs

    found, path = url_to_fs(url)
    return found, str(path).rstrip("/")
