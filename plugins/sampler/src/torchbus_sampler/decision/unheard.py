"""Reject options about divided loaders if no loader is divided."""

from __future__ import annotations

from torchbus.plugin import Context, UsageError, warn


def checked(divides: bool, **options: object) -> dict[str, object]:
    """Raise UsageError if one of these options is set, and ``replace_sampler`` is False."""
    if not divides:
        _refuse(options, "replace_sampler=False")
    return options


def _refuse(options: dict[str, object], because: str) -> None:
    asked = [f"{name}={value!r}" for name, value in options.items() if value]
    if asked:
        raise UsageError(
            f"{', '.join(asked)} with {because}: no loader is divided, so it would do nothing."
            " Leave one of them out"
        )


def look(session: Context, options: dict[str, object], divides: bool) -> None:
    """On several ranks without a dividing strategy, reject them. On one rank, warn of no ledger."""
    if session.world_size > 1 and not divides:
        _refuse(options, f"strategy={session.options['strategy']!r}")
    if session.world_size == 1 and options["sample_ledger"] and not session.world.divides_anew:
        warn(
            "sample_ledger: one rank takes every sample, in the script's own order, so nothing is"
            " written"
        )
