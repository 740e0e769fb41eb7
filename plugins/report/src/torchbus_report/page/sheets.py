"""Tables and curves of plugins on the page: the last of each name."""

from __future__ import annotations

import html
from collections.abc import Callable

from torchbus_report.page import chart
from torchbus_report.page.scale import fit, tick_text
from torchbus_report.page.series import thin
from torchbus_report.runs.sheets import Cell, Sheet
from torchbus_report.runs.summary import Run

MOST_SHEETS = 40
Heading = Callable[[int], str]


def section(runs: list[Run], heading: Heading) -> str:
    """Return the section, or "" if no run has such things."""
    found = [
        (sheet, number)
        for number, run in enumerate(runs)
        for sheet in {one.name: one for one in run.media.sheets}.values()
    ][:MOST_SHEETS]
    if not found:
        return ""
    drawn = [_curve(sheet, heading(number), number) for sheet, number in found if sheet.plot]
    tables = [_table(sheet, heading(number)) for sheet, number in found if not sheet.plot]
    return (
        '<section id="tables"><h2>Tables and tests <span class="quiet">of rank 0</span></h2><div'
        f' class="charts">{"".join(drawn)}</div>{"".join(tables)}</section>'
    )


def _title(sheet: Sheet, heading: str) -> str:
    return f"<b>{html.escape(sheet.name)}</b> {heading}".rstrip()


def _table(sheet: Sheet, heading: str) -> str:
    heads = "".join(f"<th>{html.escape(column)}</th>" for column in sheet.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(_text(cell))}</td>' for cell in row)}</tr>"
        for row in sheet.rows
    )
    return (
        f'<p>{_title(sheet, heading)} <span class="quiet">step {sheet.step}</span></p>'
        f'<div class="wide"><table class="sheet"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else f"{cell:.6g}"


def _curve(sheet: Sheet, heading: str, color: int) -> str:
    assert sheet.plot is not None
    x, y = sheet.plot
    points = thin(sorted((float(row[x]), float(row[y])) for row in sheet.rows))
    across = fit([one for one, _ in points], log=True)
    up = fit([one for _, one in points])
    ends = "".join(
        f'<span class="x" style="left:{100 * across.place(tick):.2f}%">{tick_text(tick)}</span>'
        for tick in across.ticks()
    )
    reported = f"{sheet.name}: {sheet.columns[y]} by {sheet.columns[x]}"
    return (
        f'<figure class="chart"><figcaption>{_title(sheet, heading)} <span class="unit">'
        f"{html.escape(sheet.columns[y])} by {html.escape(sheet.columns[x])}</span></figcaption>"
        f'<div class="plot"><svg viewBox="0 0 {chart.SIZE} {chart.SIZE}" preserveAspectRatio="none"'
        f' role="img" aria-label="{html.escape(reported)}">'
        f"{chart.grid(up)}{chart.path(chart.color_class(color), '', points, across, up)}"
        f"</svg>{chart.y_labels(up)}{ends}</div></figure>"
    )
