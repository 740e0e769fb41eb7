"""Numbers in environment variables."""

from __future__ import annotations

from collections.abc import Mapping

from torchbus.errors import UsageError


def integer(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    """The number in a variable; without the variable the default. Raises UsageError naming the variable."""
    text = env.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise UsageError(f"{name}={text!r} is not a number") from None
