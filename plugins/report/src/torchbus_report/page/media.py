"""Pictures, histograms, tables and curves on the page. The last picture of each name is shown
first, and a slider shows earlier ones.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable
from typing import TypeVar

from torchbus_report.page import chart
from torchbus_report.page.series import AxisScale, fit, thin
from torchbus_report.runs.media import Cell, Distribution, Picture, ReportTable
from torchbus_report.runs.summary import LoggedRun

MOST_OF_A_NAME, MOST_FIGURES = 12, 60
MOST_COLUMNS, ROWS = 40, 32
FAINTEST = 0.02
Thing = TypeVar("Thing", Picture, Distribution)
Heading = Callable[[int], str]
"""Returns the heading that names a run, by its number; "" on a page about one run."""


def section(runs: list[LoggedRun], heading: Heading) -> str:
    """Return the section of pictures and histograms, or "" if no run has logged any."""
    figures = [
        figure
        for name in _names(runs)
        for number, run in enumerate(runs)
        for figure in (
            _pictures(run, _of(name, run.media.pictures), heading(number)),
            _histograms(_of(name, run.media.histograms), heading(number), number),
        )
        if figure
    ]
    if not figures:
        return ""
    left = len(figures) - MOST_FIGURES
    more = f'<p class="quiet">{left} more are not shown.</p>' if left > 0 else ""
    return (
        '<section id="pictures"><h2>Pictures and histograms <span class="quiet">of rank 0</span>'
        f'</h2><div class="charts">{"".join(figures[:MOST_FIGURES])}</div>{more}</section>'
    )


def spread(things: list[Thing], most: int) -> list[Thing]:
    """Return at most ``most`` things, evenly spread, with the first and the last."""
    if len(things) <= most:
        return things
    return [things[round(number * (len(things) - 1) / (most - 1))] for number in range(most)]


def _names(runs: list[LoggedRun]) -> list[str]:
    pictures = [one.name for run in runs for one in run.media.pictures]
    return list(
        dict.fromkeys(pictures + [one.name for run in runs for one in run.media.histograms])
    )


def _of(name: str, things: Iterable[Thing]) -> list[Thing]:
    return sorted((one for one in things if one.name == name), key=lambda one: one.step)


def _pictures(run: LoggedRun, pictures: list[Picture], heading: str) -> str:
    found = [
        (one, content)
        for one in spread(pictures, MOST_OF_A_NAME)
        if (content := one.content(run.folder)) is not None
    ]
    if not found:
        return ""
    last = len(found) - 1
    frames = "".join(
        f'<img alt="{html.escape(one.name)}, step {one.step}" data-step="{one.step}"'
        f'{"" if number == last else " hidden"} src="data:image/png;base64,{_encoded(content)}">'
        for number, (one, content) in enumerate(found)
    )
    slider = (
        f'<input type="range" min="0" max="{last}" value="{last}" hidden'
        f' aria-label="step of {html.escape(found[0][0].name)}">'
        if last
        else ""
    )
    return (
        f'<figure class="chart pictures"><figcaption>{_title(found[0][0], heading)}'
        f' <span class="unit">step <output>{found[-1][0].step}</output></span></figcaption>'
        f"{frames}{slider}</figure>"
    )


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _title(one: Picture | Distribution | ReportTable, heading: str) -> str:
    return f"<b>{html.escape(one.name)}</b>{f' {heading}' if heading else ''}"


def _histograms(found: list[Distribution], heading: str, color: int) -> str:
    """Return a chart with a column for each step. Darker cells have a larger share of values."""
    if not found:
        return ""
    shown = spread(found, MOST_COLUMNS)
    up = fit([end for one in shown for end in (one.low, one.high)])
    width = chart.SIZE / len(shown)
    cells = "".join(_column(one, up, number * width, width) for number, one in enumerate(shown))
    across = AxisScale(shown[0].step, max(shown[-1].step, shown[0].step + 1))
    ends = "".join(
        f'<span class="x" style="left:{place}%">{step}</span>'
        for place, step in ((0, shown[0].step), (100, shown[-1].step))
    )
    reported = f"{found[0].name}: steps {across.low:g} to {shown[-1].step}"
    return (
        f'<figure class="chart"><figcaption>{_title(found[0], heading)}</figcaption>'
        f'<div class="plot"><svg class="heat c{color % chart.COLORS}" viewBox="0 0 {chart.SIZE}'
        f' {chart.SIZE}" preserveAspectRatio="none" role="img"'
        f' aria-label="{html.escape(reported)}">'
        f"{cells}</svg>{chart.y_labels(up)}{ends}</div></figure>"
    )


def _column(one: Distribution, up: AxisScale, left: float, width: float) -> str:
    parts = density(one, up.low, up.high)
    most = max(parts) or 1.0
    height = chart.SIZE / ROWS
    return "".join(
        f'<rect x="{left:.0f}" y="{chart.SIZE - (row + 1) * height:.0f}" width="{width + 1:.0f}"'
        f' height="{height + 1:.0f}" opacity="{part / most:.2f}"/>'
        for row, part in enumerate(parts)
        if part / most >= FAINTEST
    )


def density(one: Distribution, low: float, high: float) -> list[float]:
    """Distribute the counts over ``ROWS`` equal rows between ``low`` and ``high``, by overlap."""
    rows = [0.0] * ROWS
    size, row_size = (one.high - one.low) / len(one.counts), (high - low) / ROWS
    for number, count in enumerate(one.counts):
        begin = one.low + number * size
        first = max(0, int((begin - low) / row_size))
        for row in range(first, min(ROWS, int((begin + size - low) / row_size) + 1)):
            top, bottom = low + (row + 1) * row_size, low + row * row_size
            shared = min(top, begin + size) - max(bottom, begin)
            rows[row] += count * max(shared, 0.0) / size
    return rows


MOST_SHEETS = 40


def tables(runs: list[LoggedRun], heading: Heading) -> str:
    """Return the section of tables and curves, or "" if no run has any."""
    found = [
        (sheet, number)
        for number, run in enumerate(runs)
        for sheet in {one.name: one for one in run.media.sheets}.values()
    ][:MOST_SHEETS]
    if not found:
        return ""
    drawn = [_curve(sheet, heading(number), number) for sheet, number in found if sheet.plot]
    others = [_table(sheet, heading(number)) for sheet, number in found if not sheet.plot]
    return (
        '<section id="tables"><h2>Tables and tests <span class="quiet">of rank 0</span></h2><div'
        f' class="charts">{"".join(drawn)}</div>{"".join(others)}</section>'
    )


def _table(sheet: ReportTable, heading: str) -> str:
    heads = "".join(f"<th>{html.escape(column)}</th>" for column in sheet.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(_text(cell))}</td>' for cell in row)}</tr>"
        for row in sheet.rows
    )
    return (
        f'<p>{_title(sheet, heading)} <span class="quiet">step {sheet.step}</span></p>'
        f'<div class="wide"><table class="sheet"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else f"{cell:.6g}"


def _curve(sheet: ReportTable, heading: str, color: int) -> str:
    assert sheet.plot is not None
    x, y = sheet.plot
    points = thin(sorted((float(row[x]), float(row[y])) for row in sheet.rows))
    across = fit([one for one, _ in points], log=True)
    up = fit([one for _, one in points])
    reported = f"{sheet.name}: {sheet.columns[y]} by {sheet.columns[x]}"
    return (
        f'<figure class="chart"><figcaption>{_title(sheet, heading)} <span class="unit">'
        f"{html.escape(sheet.columns[y])} by {html.escape(sheet.columns[x])}</span></figcaption>"
        f'<div class="plot"><svg viewBox="0 0 {chart.SIZE} {chart.SIZE}" preserveAspectRatio="none"'
        f' role="img" aria-label="{html.escape(reported)}">'
        f"{chart.grid(up)}{chart.path(chart.color_class(color), '', points, across, up)}"
        f"</svg>{chart.y_labels(up)}{chart.x_labels(across, chart.STEPS)}</div></figure>"
    )
