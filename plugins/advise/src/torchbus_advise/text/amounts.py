"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable

UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def number(value: float) -> str:
    """``0.34``, ``3.4``, ``34``: two digits, or those before the point."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"


def size(count: float) -> str:
    """``3.4 GiB``, ``12 MiB``."""
    for unit, least in UNITS:
        if count >= least:
            return f"{number(count / least)} {unit}"
    return f"{count:.0f} bytes"


def seconds(value: float) -> str:
    """``12 ms``, ``3.4 s``."""
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def unit_for(counts: Iterable[float]) -> tuple[str, int]:
    """One unit for all of them: GiB, or MiB if the largest is less than one GiB."""
    return UNITS[0] if max(counts) >= UNITS[0][1] else UNITS[1]
