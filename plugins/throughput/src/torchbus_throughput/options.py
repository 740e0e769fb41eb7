"""Checks of the options."""

from __future__ import annotations

import math

from torchbus.plugin import UsageError, expect

from torchbus_throughput.measures.tokens import Tokens


def check(
    throughput_every: int,
    tokens: Tokens | None,
    flops: bool | float | None,
    peak_flops: float | None,
) -> None:
    """Raise UsageError if an option has a wrong type or value."""
    expect("throughput_every", throughput_every, int, "a number of optimizer steps")
    if throughput_every < 1:
        raise UsageError(f"throughput_every={throughput_every}: it must be 1 or more steps")
    if isinstance(tokens, bool) or not (
        tokens is None or isinstance(tokens, str | int) or callable(tokens)
    ):
        raise UsageError(
            f"tokens={tokens!r}: it must be a key, an attribute or an index of the batch, or a"
            " function from the batch to an int"
        )
    kinds = (bool, int, float, type(None))
    expect("flops", flops, kinds, "True, False, or a number of FLOPs per sample")
    if flops is not None and not isinstance(flops, bool) and not 0 < flops < math.inf:
        raise UsageError(f"flops={flops}: FLOPs per sample must be more than 0")
    expect("peak_flops", peak_flops, (int, float, type(None)), "FLOPs per second of one device")
    if peak_flops is not None and not 0 < peak_flops < math.inf:
        raise UsageError(
            f"peak_flops={peak_flops}: FLOPs per second of one device must be more than 0, such as"
            " 989e12"
        )
