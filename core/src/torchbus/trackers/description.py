"""What a run is described by, as plain JSON without secrets."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from torchbus._redaction import Redactor

if TYPE_CHECKING:
    from torchbus._session.context import Context


def describe_run(session: Context) -> dict[str, Any]:
    """Where, when and how a session runs: what goes into a run's configuration."""
    from torchbus import __version__

    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": session.redactor.words(sys.orig_argv),
        "strategy": next((name for name, plugin in session.bus.plugins() if "strategy" in getattr(plugin, "owns", ())), None),
        "world_size": session.world_size,
        "device": str(session.device),
        "torchbus": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "hostname": socket.gethostname(),
        "options": session.redactor.plain({name: _option(name, value) for name, value in session.options.items()}),
    }


def plain(value: Any) -> Any:
    """A value as JSON has it, without secrets, for those who have no session: its ``redactor.plain`` knows more of them."""
    return Redactor().plain(value)


def without_secrets(text: str, secrets: Iterable[str | None]) -> str:
    """A text in which neither these secrets stand any more, nor those of the environment and the command line."""
    return Redactor(secrets).text(text)


def _option(name: str, value: Any) -> Any:
    """Plugin objects by their class alone: what they were given may be secret."""
    if isinstance(value, list | tuple):
        return [_option(name, item) for item in value]
    known = value is None or isinstance(value, str | bool | Real | Mapping | os.PathLike)
    return value if known else type(value).__name__
