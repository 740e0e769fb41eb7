"""The table of runs: facts, results, the last values that the loops logged, and the differing
hyperparameters. A second table compares the configurations.
"""

from __future__ import annotations

import html

from torchbus_report.page import chart
from torchbus_report.runs import summary
from torchbus_report.runs.files import showable
from torchbus_report.runs.summary import LoggedRun, flat

MOST_VALUES = 12
COLUMNS = (
    "state",
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


def table(runs: list[LoggedRun]) -> str:
    """Return a row for each run."""
    found = [summary.of(run) for run in runs]
    cells = [
        one.cells() | {"best loss": best_loss(run)} for run, one in zip(runs, found, strict=True)
    ]
    columns = [column for column in COLUMNS if any(one[column] for one in cells)]
    logged = dict.fromkeys(name for one in found for name in one.logged_names)
    for name in [name for name in logged if name not in columns][:MOST_VALUES]:
        columns.append(name)
        cells = [
            cell | {name: summary.short(one.values.get(name))}
            for cell, one in zip(cells, found, strict=True)
        ]
    for name, texts in compared(runs).items():
        columns.append(name)
        cells = [one | {name: text} for one, text in zip(cells, texts, strict=True)]
    head = "".join(f"<th scope=col>{html.escape(column)}</th>" for column in columns)
    rows = [
        _row(
            run,
            chip(number, run.label) if runs[1:] else html.escape(run.label),
            found[number].notes,
            {name: cells[number][name] for name in columns},
        )
        for number, run in enumerate(runs)
    ]
    return (
        '<div class="wide"><table class="runs"><thead><tr><th scope=col>run</th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(run: LoggedRun, label: str, notes: list[str], cells: dict[str, str]) -> str:
    reported = f'<div class="bad">{html.escape("; ".join(notes))}</div>' if notes else ""
    folder = (
        f'<div class="quiet">{html.escape(showable(run.folder.name))}</div>'
        if run.label != run.folder.name
        else ""
    )
    texts = "".join(
        f'<td data-head="{html.escape(column)}">{html.escape(text)}</td>'
        for column, text in cells.items()
    )
    return f"<tr><th scope=row>{label}{folder}{reported}</th>{texts}</tr>"


def best_loss(run: LoggedRun) -> str:
    """Return the smallest loss, or the smallest smoothed loss if the curve is drawn smoothed."""
    found = chart.training([run], "loss")
    if not found or not found[0].known:
        return ""
    mean = [y for _, y in found[0].smoothed]
    return summary.short(min(mean or found[0].known)) + (" (mean)" if mean else "")


def chip(number: int, label: str) -> str:
    """Return a run's label, with a sample of its line in the charts."""
    line = (
        f'<svg viewBox="0 0 28 8" aria-hidden="true"><path class="{chart.color_class(number)}"'
        ' d="M1 4H27"/></svg>'
    )
    return f'<span class="chip">{line}{html.escape(label)}</span>'


SHOWN_ELSEWHERE = ("name", "started", "ended")
MOST_COLUMNS = 8


def compared(runs: list[LoggedRun]) -> dict[str, list[str]]:
    """Return the hyperparameters that differ between runs, by name, with a text for each run."""
    columns = [flat(run.config.get("hyperparams")) for run in runs]
    keys = dict.fromkeys(key for column in columns for key in column)
    found = {key: [column.get(key, "-") for column in columns] for key in keys}
    differing = [key for key, texts in found.items() if len(set(texts)) > 1]
    return {key: found[key] for key in differing[:MOST_COLUMNS]}


def settings(runs: list[LoggedRun], heads: list[str]) -> str:
    """Return a table with a row for each setting. Rows in which runs differ come first, marked."""
    columns = [
        flat({key: value for key, value in run.config.items() if key not in SHOWN_ELSEWHERE})
        for run in runs
    ]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    differing = [key for key in keys if len({column.get(key) for column in columns}) > 1]
    rows = [_setting(key, columns, True) for key in differing] + [
        _setting(key, columns, False) for key in keys if key not in differing
    ]
    head = (
        "".join(f"<th scope=col>{one}</th>" for one in heads)
        if len(runs) > 1
        else "<th scope=col>value</th>"
    )
    note = '<p class="quiet">Marked rows differ between the runs.</p>' if differing else ""
    return (
        f'{note}<div class="wide"><table><thead><tr><th'
        f" scope=col>setting</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _setting(key: str, columns: list[dict[str, str]], differs: bool) -> str:
    shown = columns if differs else columns[:1]
    span = f' colspan="{len(columns)}"' if len(columns) > len(shown) else ""
    texts = [html.escape(column[key]) if key in column else "-" for column in shown]
    cells = "".join(f"<td{span}>{text}</td>" for text in texts)
    return (
        f"<tr{' class=differs' if differs else ''}><th"
        f" scope=row>{html.escape(key)}</th>{cells}</tr>"
    )
