"""The HTML page about runs: one self-contained file."""

from __future__ import annotations

import html
from collections import Counter

from torchbus_cli import html_page
from torchbus_report.page import chart, media, ranks
from torchbus_report.page.script import LIVE, SCRIPT
from torchbus_report.page.style import DARK, LIGHT, RULES
from torchbus_report.page.table import chip, settings, table
from torchbus_report.runs.files import showable
from torchbus_report.runs.summary import LoggedRun

MOST_CHARTS = 300


def page(runs: list[LoggedRun], *, live: bool = False) -> str:
    """Return the HTML of a report on one or more runs. It loads no other files.

    With ``live``, the page asks its server for new values.
    """
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"

    def heading(number: int) -> str:
        return chip(number, runs[number].label) if runs[1:] else ""

    parts = [
        header(title, '<a href="/">all runs</a>' if live else ""),
        f'<section id="runs">{table(runs)}</section>',
        ranks.section(runs, heading),
        _charts(runs, system=False),
        media.section(runs, heading),
        media.tables(runs, heading),
        _charts(runs, system=True),
        _configuration(runs),
    ]
    return document(f"{title} · torchbus report", "".join(parts), live=live)


def document(title: str, body: str, *, live: bool) -> str:
    """Return a whole page in the look of a report."""
    script = SCRIPT + LIVE if live else SCRIPT
    return html_page.document(title, body, RULES, script, LIGHT, DARK)


def header(title: str, more: str) -> str:
    """Return the first line of a page: the title, and the link in ``more``."""
    return (
        f'<header><h1>{html.escape(title)}</h1><span class="quiet">torchbus report</span>{more}'
        '<output class="quiet" id="live"></output></header>'
    )


def _charts(runs: list[LoggedRun], system: bool) -> str:
    wanted = chart.in_order(chart.metric_names(runs, system), system)
    drawn = [_chart(name, runs, system) for name in wanted[:MOST_CHARTS]]
    if not drawn:
        return (
            ""
            if system
            else '<section id="training"><h2>Training</h2>'
            '<p class="quiet">No metrics were logged.</p></section>'
        )
    heading = (
        'Machines <span class="quiet">by time</span>'
        if system
        else 'Training <span class="quiet">by step</span>'
    )
    return (
        f'<section id="{"machines" if system else "training"}"><h2>{heading}</h2>'
        f'{_legend(runs, system)}<div class="charts">{"".join(drawn)}</div>'
        f"{_more(len(wanted))}</section>"
    )


def _legend(runs: list[LoggedRun], system: bool) -> str:
    """Return buttons with a colour for each run, or for each rank of a single run."""
    ranks = list(runs[0].system) if system and len(runs) == 1 else []
    named = {rank: f"rank {rank}" for rank in ranks} if len(ranks) > 1 else {}
    if len(runs) > 1:
        named = {number: run.label for number, run in enumerate(runs)}
    chips = [
        f'<button type="button" data-run="{number}" aria-pressed="true">{chip(number, label)}'
        "</button>"
        for number, label in named.items()
    ]
    return f'<p class="legend">{"".join(chips)}</p>' if chips else ""


def _more(wanted: int) -> str:
    return (
        f'<p class="quiet">{wanted - MOST_CHARTS} more metrics are not drawn.</p>'
        if wanted > MOST_CHARTS
        else ""
    )


def _chart(name: str, runs: list[LoggedRun], system: bool) -> str:
    drawn = chart.system(runs, name) if system else chart.training(runs, name)
    return chart.chart(
        name, drawn, chart.TIME if system else chart.STEPS, hover_names=len(drawn) > 1
    )


def _configuration(runs: list[LoggedRun]) -> str:
    repeated = Counter(run.label for run in runs)
    heads = [
        chip(number, run.label if repeated[run.label] == 1 else showable(run.folder.name))
        for number, run in enumerate(runs)
    ]
    return f'<section id="configuration"><h2>Configuration</h2>{settings(runs, heads)}</section>'
