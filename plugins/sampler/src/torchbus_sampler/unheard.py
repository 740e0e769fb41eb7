"""Options about divided loaders, where no loader is divided."""

from __future__ import annotations

from torchbus import Session
from torchbus.errors import UsageError
from torchbus.notices import warn


def refuse(options: dict[str, object], because: str) -> None:
    """Raise UsageError if any of these options is set."""
    asked = [f"{name}={value!r}" for name, value in options.items() if value]
    if asked:
        raise UsageError(f"{', '.join(asked)} with {because}: no loader is divided, so it would do nothing. Leave one of them out")


def look(session: Session, options: dict[str, object], divides: bool) -> None:
    """On several ranks without a strategy that divides loaders, refuse them; on one rank say that there is no ledger."""
    if session.world_size > 1 and not divides:
        refuse(options, f"strategy={session.options['strategy']!r}")
    if session.world_size == 1 and options["sample_ledger"]:
        warn("sample_ledger: one rank takes every sample, in the script's own order, so nothing is written")
