"""Checks of the options."""

from __future__ import annotations

from torchbus.plugin import UsageError, expect


def check(
    ema_decay: float | None,
    swa_start: int | None,
    every: int,
    buffers: bool,
    in_eval: bool,
) -> None:
    """Raise UsageError if an option has a wrong type or value, or if they don't fit together."""
    expect("ema_decay", ema_decay, (int, float, type(None)), "a number from 0 to 1")
    expect(
        "swa_start",
        swa_start,
        (int, type(None)),
        "a number of optimizer steps: a session does not know beforehand how long the loop runs",
    )
    expect("every", every, int, "a number of optimizer steps")
    expect("buffers", buffers, bool, "True or False")
    expect("in_eval", in_eval, bool, "True or False")
    if ema_decay is not None and swa_start is not None:
        raise UsageError(
            f"ema_decay={ema_decay} and swa_start={swa_start}: a session keeps one average of the"
            " weights. Pass only one of them"
        )
    if ema_decay is not None and not 0 <= ema_decay <= 1:
        raise UsageError(f"ema_decay={ema_decay}: it must be from 0 to 1")
    if swa_start is not None and swa_start < 0:
        raise UsageError(f"swa_start={swa_start}: it must be 0 or more optimizer steps")
    if every < 1:
        raise UsageError(f"every={every}: it must be 1 or more optimizer steps")
