"""What a URL says: which file system, which place in it, and which local folder goes with it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from torchbus.plugin import UsageError

EXTRA = 'pip install "torchbus-checkpoint[remote]"'
COLLAPSED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")


def is_url(place: object) -> bool:
    """Whether it is one of ``s3://bucket/run``. Raises UsageError for what ``Path`` has made of one."""
    if isinstance(place, os.PathLike) and COLLAPSED.match(os.fspath(place)):
        raise UsageError(f"{place!r} was a URL: pass it as a string, not as a Path, which has only one / left of ://")
    return isinstance(place, str) and "://" in place


def shown(url: str) -> str:
    """Without the password."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", url)


def local_folder(url: str) -> Path:
    """``checkpoints/s3/bucket/run`` for ``s3://bucket/run``, in the working directory."""
    words = re.split(r"[/\\]+|:+/*", re.sub(r"://[^/@]*@", "://", url).partition("?")[0])
    return Path("checkpoints", *(re.sub(r"[^0-9A-Za-z_.-]+", "_", word) for word in words if word.strip(".")))


def refuse_unknown(url: str) -> None:
    """Raises UsageError where a package is missing, or nobody knows such a URL. Starts no thread, which a fork would not like."""
    try:
        from fsspec import get_filesystem_class
    except ImportError:
        raise UsageError(f"checkpoint={shown(url)!r} needs fsspec: {EXTRA}") from None
    for part in url.split("::"):
        try:
            get_filesystem_class(part.partition("://")[0])
        except ImportError as error:
            raise UsageError(f"checkpoint={shown(url)!r} needs a package that is not installed: {EXTRA} ({error})") from None
        except ValueError as error:
            raise UsageError(f"checkpoint={shown(url)!r}: {error}") from None


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's, and the path in it."""
    from fsspec.core import url_to_fs

    found, path = url_to_fs(url)
    return found, str(path).rstrip("/")
