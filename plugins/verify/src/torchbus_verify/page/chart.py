"""The difference of one tensor over the steps, on a logarithmic scale, and what rounding allows."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable

from torchbus_verify.compare.difference import Difference

SIZE = 1000
LOW, HIGH = -18.0, 1.0
"""Powers of ten at the edges; what is smaller or nothing lies on the lower one."""
TICKS = (-16, -12, -8, -4, 0)
TOLD_AT_MOST = 3


def chart(kind: str, name: str, places: list[Difference]) -> str:
    """A figure; one whose difference is more than rounding is marked."""
    more = [one for one in places if one.is_more]
    words = (
        f"from step {more[0].step + 1} on more than rounding" if more else "no more than rounding"
    )
    what = f"{kind}, {words}" if name else words
    caption = (
        f"<figcaption><b>{html.escape(name or kind)}</b> "
        f'<span class="{"bad" if more else "quiet"}">{what}</span></figcaption>'
    )
    style = f"chart{' more' if more else ''}"
    spoken = html.escape(f"{kind} {name}: {words}")
    return f'<figure class="{style}">{caption}{_told(places)}{_plot(places, spoken)}</figure>'


def _told(places: list[Difference]) -> str:
    """What could not be compared, in words: other steps, another shape."""
    told = [f"step {one.step + 1}: {one.words}" for one in places if one.words]
    return "".join(f"<p>{html.escape(text)}</p>" for text in told[:TOLD_AT_MOST])


def _plot(places: list[Difference], spoken: str) -> str:
    measured = [one for one in places if not one.words]
    if not measured:
        return ""
    steps = max(one.step for one in places) or 1
    drawn = _path("allowed", ((one.step, one.allowed) for one in measured), steps)
    drawn += _path("", ((one.step, one.relative) for one in measured), steps)
    return (
        f'<div class="plot"><svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{spoken}">{_grid()}{drawn}</svg>{_labels()}{_ends(steps)}</div>'
    )


def _path(style: str, points: Iterable[tuple[int, float]], steps: int) -> str:
    places = [f"{SIZE * step / steps:.0f} {_height(value):.0f}" for step, value in points]
    line = f"M{'L'.join(places)}{'h0' if len(places) == 1 else ''}"
    dot = " dot" if len(places) == 1 else ""
    return f'<path class="{style}{dot}" d="{line}"/>'


def _height(value: float) -> float:
    power = LOW if value <= 0 else HIGH if math.isinf(value) else math.log10(value)
    return SIZE * (1 - (min(HIGH, max(LOW, power)) - LOW) / (HIGH - LOW))


def _grid() -> str:
    return "".join(
        f'<path class="grid" d="M0 {_height(10.0**tick):.1f}H{SIZE}"/>' for tick in TICKS
    )


def _labels() -> str:
    tops = [(tick, 100 * _height(10.0**tick) / SIZE) for tick in TICKS]
    named = [("1" if tick == 0 else f"1e{tick}", top) for tick, top in tops]
    return "".join(
        f'<span class="y" style="top:{top:.2f}%">{text}</span>'
        for text, top in [*named, ("0", 100)]
    )


def _ends(steps: int) -> str:
    return (
        '<span class="x" style="left:0">1</span><span class="x"'
        f' style="left:100%">{steps + 1}</span>'
    )
