"""What ``loss_weight=`` may be."""

from __future__ import annotations

from torchbus.errors import UsageError

MODES = ("auto", "samples", "tokens")


def check_mode(mode: str) -> None:
    """Raises UsageError for what ``loss_weight=`` can't be."""
    if mode not in MODES:
        raise UsageError(f"loss_weight={mode!r} is unknown: use {', '.join(map(repr, MODES[:-1]))} or {MODES[-1]!r}")
