"""Describes a run as plain JSON without secrets."""

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
    """Describe where, when and how a session runs, for a run's configuration."""
    from torchbus import __version__

    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": session.redactor.words(sys.orig_argv),
        "strategy": next(
            (
                name
                for name, plugin in session.bus.plugins()
                if "strategy" in getattr(plugin, "owns", ())
            ),
            None,
        ),
        "world_size": session.world_size,
        "device": str(session.device),
        "torchbus": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "hostname": socket.gethostname(),
        "options": session.redactor.plain(
            {name: _option(name, value) for name, value in session.options.items()}
        ),
    }


def plain(value: object) -> Any:
    """Return a value in the types of JSON, without secrets.

    If you have a session, use its ``redactor.plain``, which knows more secrets.
    """
    return Redactor().plain(value)


def without_secrets(text: str, secrets: Iterable[str | None]) -> str:
    """Return a text without these secrets and those of the environment and command line."""
    return Redactor(secrets).text(text)


def _option(name: str, value: object) -> object:
    """Return an option, but a plugin object only as its class: its arguments may be secret."""
    if isinstance(value, list | tuple):
        return [_option(name, item) for item in value]
    known = value is None or isinstance(value, str | bool | Real | Mapping | os.PathLike)
    return value if known else type(value).__name__
