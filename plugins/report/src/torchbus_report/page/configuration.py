"""Configurations side by side. Settings that differ come first."""

from __future__ import annotations

import html

from torchbus_report.runs.summary import Run, flat

SHOWN_ELSEWHERE = ("name", "started", "ended")
MOST_COLUMNS = 8


def compared(runs: list[Run]) -> dict[str, list[str]]:
    """Return the hyperparameters that differ between runs, by name: a text for each run."""
    columns = [flat(run.config.get("hyperparams")) for run in runs]
    keys = dict.fromkeys(key for column in columns for key in column)
    found = {key: [column.get(key, "-") for column in columns] for key in keys}
    differing = [key for key, texts in found.items() if len(set(texts)) > 1]
    return {key: found[key] for key in differing[:MOST_COLUMNS]}


def table(runs: list[Run], heads: list[str]) -> str:
    """Return a row for each setting. Rows in which runs differ are marked, and come first."""
    columns = [
        flat({key: value for key, value in run.config.items() if key not in SHOWN_ELSEWHERE})
        for run in runs
    ]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    differing = [key for key in keys if len({column.get(key) for column in columns}) > 1]
    rows = [_row(key, columns, True) for key in differing] + [
        _row(key, columns, False) for key in keys if key not in differing
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


def _row(key: str, columns: list[dict[str, str]], differs: bool) -> str:
    cells = [html.escape(column[key]) if key in column else "-" for column in columns]
    if not differs:
        cells = (
            [f'<td colspan="{len(columns)}">{cells[0]}</td>']
            if len(columns) > 1
            else [f"<td>{cells[0]}</td>"]
        )
    else:
        cells = [f"<td>{cell}</td>" for cell in cells]
    return (
        f"<tr{' class=differs' if differs else ''}><th"
        f" scope=row>{html.escape(key)}</th>{''.join(cells)}</tr>"
    )
