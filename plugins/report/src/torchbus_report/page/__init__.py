"""The page: one file that holds all that it needs."""

from __future__ import annotations

import html
from collections import Counter

from torchbus.plugin import html_page

from torchbus_report.page import chart, configuration, curves, names
from torchbus_report.page.script import SCRIPT
from torchbus_report.page.style import DARK, LIGHT, RULES
from torchbus_report.runs import summary
from torchbus_report.runs.run import Run
from torchbus_report.runs.showing import showable

COLUMNS = (
    "started",
    "time",
    "ranks",
    "device",
    "strategy",
    "steps",
    "epochs",
    "loss",
    "best loss",
    "samples/s",
)
MOST_CHARTS = 300


def page(runs: list[Run]) -> str:
    """Return the HTML of a report on one or more runs. It refers to nothing outside of itself."""
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    parts = [
        _header(title),
        _runs(runs),
        _charts(runs, system=False),
        _charts(runs, system=True),
        _configuration(runs),
    ]
    return html_page.document(
        f"{title} · torchbus report", "".join(parts), RULES, SCRIPT, LIGHT, DARK
    )


def _header(title: str) -> str:
    return (
        f'<header><h1>{html.escape(title)}</h1><span class="quiet">torchbus report</span></header>'
    )


def _runs(runs: list[Run]) -> str:
    found = [summary.of(run) for run in runs]
    columns = [column for column in COLUMNS if any(one.words()[column] for one in found)]
    head = "".join(f"<th scope=col>{column}</th>" for column in columns)
    rows = [
        _run(run, number, one, columns, len(runs) > 1)
        for number, (run, one) in enumerate(zip(runs, found, strict=True))
    ]
    table = (
        '<table class="runs"><thead><tr><th'
        f" scope=col>run</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
    return f'<section><div class="wide">{table}</div></section>'


def _run(run: Run, number: int, facts: summary.Summary, columns: list[str], several: bool) -> str:
    cells = "".join(
        f'<td data-head="{column}">{html.escape(facts.words()[column])}</td>' for column in columns
    )
    notes = f'<div class="bad">{html.escape("; ".join(facts.notes))}</div>' if facts.notes else ""
    folder = (
        f'<div class="quiet">{html.escape(showable(run.folder.name))}</div>'
        if run.label != run.folder.name
        else ""
    )
    label = _chip(number, run.label) if several else html.escape(run.label)
    return f"<tr><th scope=row>{label}{folder}{notes}</th>{cells}</tr>"


def _chip(number: int, label: str) -> str:
    line = (
        f'<svg viewBox="0 0 28 8" aria-hidden="true"><path class="{chart.color_class(number)}"'
        ' d="M1 4H27"/></svg>'
    )
    return f'<span class="chip">{line}{html.escape(label)}</span>'


def _charts(runs: list[Run], system: bool) -> str:
    wanted = names.in_order(curves.metric_names(runs, system), system)
    drawn = [_chart(name, runs, system) for name in wanted[:MOST_CHARTS]]
    if not drawn:
        return (
            ""
            if system
            else '<section><h2>Training</h2><p class="quiet">No metrics were logged.</p></section>'
        )
    heading = (
        'Machines <span class="quiet">by time</span>'
        if system
        else 'Training <span class="quiet">by step</span>'
    )
    return (
        f"<section><h2>{heading}</h2>{_legend(runs, system)}<div"
        f' class="charts">{"".join(drawn)}</div>{_more(len(wanted))}</section>'
    )


def _legend(runs: list[Run], system: bool) -> str:
    """A colour for each run, or for each rank of a single run."""
    ranks = list(runs[0].system) if system and len(runs) == 1 else []
    chips = [_chip(rank, f"rank {rank}") for rank in ranks] if len(ranks) > 1 else []
    if len(runs) > 1:
        chips = [_chip(number, run.label) for number, run in enumerate(runs)]
    return f'<p class="legend">{"".join(chips)}</p>' if chips else ""


def _more(wanted: int) -> str:
    return (
        f'<p class="quiet">{wanted - MOST_CHARTS} more metrics are not drawn.</p>'
        if wanted > MOST_CHARTS
        else ""
    )


def _chart(name: str, runs: list[Run], system: bool) -> str:
    drawn = curves.system(runs, name) if system else curves.training(runs, name)
    return chart.chart(
        name, drawn, chart.TIME if system else chart.STEPS, hover_names=len(drawn) > 1
    )


def _configuration(runs: list[Run]) -> str:
    repeated = Counter(run.label for run in runs)
    heads = [
        _chip(number, run.label if repeated[run.label] == 1 else showable(run.folder.name))
        for number, run in enumerate(runs)
    ]
    return f"<section><h2>Configuration</h2>{configuration.table(runs, heads)}</section>"
