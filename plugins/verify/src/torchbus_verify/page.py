"""The page of ``--html``: the difference of each tensor in each step, in one file."""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Iterable

from torchbus_cli import html_page
from torchbus_verify.compare.difference import Difference
from torchbus_verify.report import Verdict

MOST_CHARTS = 200


def page(verdict: Verdict) -> str:
    """Return self-contained HTML."""
    parts = [f"<h1>{html.escape(verdict.headline)}</h1>", _found(verdict), _charts(verdict)]
    return html_page.document("torchbus verify", "".join(parts), RULES)


def _found(verdict: Verdict) -> str:
    entries = [(one.name, f"{one.found}. {one.remedy}") for one in verdict.causes]
    entries += [("note", note) for note in verdict.notes]
    if verdict.traceback:
        return f"<pre>{html.escape(verdict.traceback)}</pre>"
    reported = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in entries
    )
    return f"<dl>{reported}</dl>" if reported else ""


def _charts(verdict: Verdict) -> str:
    curves: defaultdict[tuple[str, str], list[Difference]] = defaultdict(list)
    for one in verdict.places:
        curves[one.kind, one.name].append(one)
    worst_first = sorted(curves.items(), key=lambda item: -max(_excess(one) for one in item[1]))
    drawn = [chart(kind, name, places) for (kind, name), places in worst_first[:MOST_CHARTS]]
    if not drawn:
        return ""
    left_out = len(curves) - MOST_CHARTS
    more = (
        f'<p class="quiet">{left_out} tensors with smaller differences are not drawn.</p>'
        if left_out > 0
        else ""
    )
    heading = (
        'Difference by step <span class="quiet">relative to the largest value, log scale; dashed:'
        " rounding</span>"
    )
    return f'<h2>{heading}</h2><div class="charts">{"".join(drawn)}</div>{more}'


def _excess(one: Difference) -> float:
    return one.relative / one.allowed if one.allowed else one.relative


SIZE = 1000
LOW, HIGH = -18.0, 1.0
"""Powers of ten at the edges; smaller values and zero are drawn at the lower edge."""
TICKS = (-16, -12, -8, -4, 0)
REPORTED_AT_MOST = 3


def chart(kind: str, name: str, places: list[Difference]) -> str:
    """Return the chart of one tensor; a difference beyond rounding is highlighted."""
    more = [one for one in places if one.is_more]
    text = (
        f"from step {more[0].step + 1} on more than rounding" if more else "no more than rounding"
    )
    what = f"{kind}, {text}" if name else text
    caption = (
        f"<figcaption><b>{html.escape(name or kind)}</b> "
        f'<span class="{"bad" if more else "quiet"}">{what}</span></figcaption>'
    )
    style = f"chart{' more' if more else ''}"
    spoken = html.escape(f"{kind} {name}: {text}")
    return f'<figure class="{style}">{caption}{_uncompared(places)}{_plot(places, spoken)}</figure>'


def _uncompared(places: list[Difference]) -> str:
    """Describe what could not be compared: different steps, a different shape."""
    reported = [f"step {one.step + 1}: {one.words}" for one in places if one.words]
    return "".join(f"<p>{html.escape(text)}</p>" for text in reported[:REPORTED_AT_MOST])


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


RULES = """
h1{font-size:22px;margin-bottom:10px}
dt{font-weight:600;margin-top:8px}
dd{margin:0;overflow-wrap:anywhere}
pre{overflow-x:auto;font-size:13px}
.more{background:var(--mark)}
.plot{height:190px}
figure p{margin:0 0 6px}
path.dot{stroke-width:7}
path.allowed{stroke:var(--quiet);stroke-dasharray:5 5}
"""
