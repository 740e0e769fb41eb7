"""What a run is described by, as plain JSON without secrets."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import re
import socket
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torchbus.session import Session

HIDDEN = "(hidden)"
SECRET = re.compile(r"token|secret|passw|credential|api[-_]?key|private[-_]?key|^auth", re.IGNORECASE)
SECRET_FLAG = re.compile(r"^--?[\w-]*(?:token|secret|passw|credential|api[-_]?key|private[-_]?key)[\w-]*", re.IGNORECASE)


def describe_run(session: Session) -> dict[str, Any]:
    """Where, when and how a session runs: what goes into a run's configuration."""
    from torchbus import __version__

    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": _command(sys.orig_argv),
        "strategy": next((name for name, plugin in session.bus.plugins() if "strategy" in getattr(plugin, "owns", ())), None),
        "world_size": session.world_size,
        "device": str(session.device),
        "torchbus": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "hostname": socket.gethostname(),
        "options": {name: _option(name, value) for name, value in session.options.items()},
    }


def plain(value: Any) -> Any:
    """A value as JSON has it: dicts, lists, strings, numbers, booleans, None; anything else as its text. NaN and infinities
    are text as well. Entries whose names speak of secrets are hidden."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Namespace):
        value = vars(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): HIDDEN if SECRET.search(str(key)) and item is not None else plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return _text(value)


def without_secrets(text: str, secrets: Iterable[str | None]) -> str:
    """A text in which none of these secrets stands any more."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, HIDDEN)
    return text


def tokens_around() -> list[str]:
    """Values of environment variables whose names speak of secrets."""
    return [value for name, value in os.environ.items() if SECRET.search(name) and len(value) > 3]


def _option(name: str, value: Any) -> Any:
    """Plugin objects by their class alone: what they were given may be secret."""
    if isinstance(value, list | tuple):
        return [_option(name, item) for item in value]
    known = value is None or isinstance(value, str | bool | Real | Mapping | os.PathLike)
    return plain({name: value})[name] if known else type(value).__name__


def _command(words: list[str]) -> list[str]:
    """The command line, less what follows a flag such as ``--api-key``."""
    told: list[str] = []
    hides = False
    for word in words:
        flag = SECRET_FLAG.match(word)
        told.append(HIDDEN if hides and not flag else f"{flag.group()}={HIDDEN}" if flag and "=" in word else word)
        hides = bool(flag) and "=" not in word
    return [without_secrets(word, tokens_around()) for word in told]


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"a {type(value).__name__}"
