"""Named tensors of two records: missing, of another shape, or different, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from torchbus_verify.compare.difference import apart
from torchbus_verify.record.reading import Stored

Named = Mapping[str, Stored | None]
"""None where a parameter has no gradient."""


class Gap(NamedTuple):
    """``relative`` to the largest value; infinite, with ``words``, if nothing can be compared."""

    name: str
    relative: float
    words: str = ""


def gap(
    name: str,
    ours: Named,
    theirs: Named,
    floor: float = 0.0,
    sides: tuple[str, str] = ("session", "plain"),
) -> Gap:
    """Differences below ``floor`` are none."""
    if name not in ours or name not in theirs:
        return Gap(name, math.inf, f"only in the {sides[name not in ours]} run")
    a, b = ours[name], theirs[name]
    if a is None or b is None:
        words = f"{'no' if a is None else 'a'} gradient, unlike in the {sides[1]} run"
        return Gap(name, 0.0) if a is b else Gap(name, math.inf, words)
    if a.shape != b.shape:
        return Gap(name, math.inf, f"has the shape {a.shape}, not {b.shape}")
    return Gap(name, 0.0 if a.checksum == b.checksum else apart(a.values(), b.values(), floor))
