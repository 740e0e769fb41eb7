"""The whole page of a verdict."""

from __future__ import annotations

import html
from collections import defaultdict

from torchbus_cli import html_page
from torchbus_verify.compare.difference import Difference
from torchbus_verify.page.chart import chart
from torchbus_verify.page.style import RULES
from torchbus_verify.report.verdict import Verdict

MOST_CHARTS = 200


def page(verdict: Verdict) -> str:
    """HTML that refers to nothing outside of itself."""
    parts = [f"<h1>{html.escape(verdict.headline)}</h1>", _found(verdict), _charts(verdict)]
    return html_page.document("torchbus verify", "".join(parts), RULES)


def _found(verdict: Verdict) -> str:
    entries = [(one.name, f"{one.found}. {one.remedy}") for one in verdict.causes]
    entries += [("note", note) for note in verdict.notes]
    if verdict.traceback:
        return f"<pre>{html.escape(verdict.traceback)}</pre>"
    told = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in entries
    )
    return f"<dl>{told}</dl>" if told else ""


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
