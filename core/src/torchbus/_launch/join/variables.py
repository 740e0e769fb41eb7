"""Reads numbers from environment variables."""

from __future__ import annotations

from collections.abc import Mapping

from torchbus.errors import UsageError


def integer(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return the number in a variable, or the default if the variable is not set.

    Raises UsageError, which names the variable.
    """
    text = env.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise UsageError(f"{name}={text!r} is not a number") from None
