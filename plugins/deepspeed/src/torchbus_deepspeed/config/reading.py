"""Reads the config from an argument, a file, or the environment."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torchbus.plugin import UsageError

VARIABLE = "DEEPSPEED_CONFIG"
Given = Mapping[str, Any] | str | os.PathLike[str] | None


def read(given: Given) -> dict[str, Any]:
    """Return a copy of the config; empty if there is none.

    Raises UsageError if it is neither a dict nor a readable JSON object.
    """
    where = VARIABLE if given is None else "config"
    found: object = (os.environ.get(VARIABLE) or {}) if given is None else given
    if isinstance(found, str | os.PathLike):
        found = _from_file(Path(found), where)
    if not isinstance(found, Mapping):
        raise UsageError(
            f"{where} is a {type(found).__name__}: pass a dict, or the path of a JSON file; without"
            f" it, {VARIABLE} may name such a file"
        )
    return copy.deepcopy(dict(found))


def _from_file(path: Path, where: str) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where}={str(path)!r} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{where}={str(path)!r} is not valid JSON: {error}") from error


OLDEST = (0, 19)
MISSING = (
    "strategy='{}' needs DeepSpeed, which is not installed: DS_BUILD_OPS=0 pip install"
    " --no-build-isolation 'deepspeed>=0.19'"
)
TOO_OLD = (
    "strategy='{}' needs DeepSpeed 0.19 or later, and {} is installed: DS_BUILD_OPS=0 pip install"
    " --no-build-isolation 'deepspeed>=0.19'"
)


def require_deepspeed(strategy: str) -> None:
    """Raise UsageError if DeepSpeed is not installed, or too old. Imports nothing."""
    try:
        found = version("deepspeed")
    except PackageNotFoundError:
        raise UsageError(MISSING.format(strategy)) from None
    if tuple(int(number) for number in found.split("+")[0].split(".")[:2]) < OLDEST:
        raise UsageError(TOO_OLD.format(strategy, found))
