"""The list of runs in a browser: a form filters it, links sort it, boxes choose runs to compare."""

from __future__ import annotations

import html
from collections.abc import Sequence
from urllib.parse import urlencode

from torchbus_report.page import document, header
from torchbus_report.runs.columns import Cell, Known, Wish

COLUMNS = ("state", "started", "ranks", "steps", "epochs", "time", "loss", "samples/s")
MOST_VALUES = 12
EXAMPLE = "val/acc>=0.9, epochs>=10"
EMPTY = Cell("", "")


def page(runs: Sequence[Known], wish: Wish, note: str) -> str:
    """Return the page with the list of runs. ``note`` is a problem to show, or ""."""
    body = (
        f"{header('runs', _link('runs.csv', wish, 'CSV'))}{_form(wish)}"
        f'<section id="runs">{_bad(note)}{_table(runs, wish) if runs else ""}</section>'
    )
    return document("torchbus runs", body, live=True)


def problem(text: str) -> str:
    """Return a page that says what is wrong with an address."""
    all_runs = _link("", Wish(), "all runs")
    body = f'{header("no page", all_runs)}<section id="runs">{_bad(text)}</section>'
    return document("torchbus report", body, live=True)


def _bad(text: str) -> str:
    return f'<p class="bad">{html.escape(text)}</p>' if text else ""


def _link(page: str, wish: Wish, word: str) -> str:
    query = {"where": ", ".join(wish.where), "sort": wish.sort, "reverse": "1" * wish.reverse}
    words = urlencode({name: value for name, value in query.items() if value})
    return f'<a href="/{page}{html.escape("?" + words if words else "")}">{html.escape(word)}</a>'


def _form(wish: Wish) -> str:
    order = "".join(
        f'<input type="hidden" name="{name}" value="{html.escape(value)}">'
        for name, value in (("sort", wish.sort), ("reverse", "1" * wish.reverse))
        if value
    )
    return (
        '<form class="filter"><input type="search" name="where" aria-label="conditions"'
        f' placeholder="{html.escape(EXAMPLE)}" value="{html.escape(", ".join(wish.where))}">'
        f"{order}<button>filter</button></form>"
    )


def _table(runs: Sequence[Known], wish: Wish) -> str:
    names = list(dict.fromkeys(name for run, _ in runs for name in run.logged_names))
    values = [name for name in names if name not in COLUMNS][:MOST_VALUES]
    names = [one for one in COLUMNS if any(one in cells for _, cells in runs)] + values
    heads = "".join(f"<th scope=col>{_sorting(name, wish)}</th>" for name in ("run", *names))
    rows = "".join(_row(one, names) for one in runs)
    return (
        '<form action="/run"><div class="wide"><table class="runs list"><thead><tr><td></td>'
        f'{heads}</tr></thead><tbody>{rows}</tbody></table></div><p><button class="compare">'
        "compare the chosen runs</button></p></form>"
    )


def _sorting(name: str, wish: Wish) -> str:
    """Return a link that sorts by a column, or reverses the order if it is already sorted by it."""
    turned = name == wish.sort and not wish.reverse
    mark = "" if name != wish.sort else " ↓" if wish.reverse else " ↑"
    return _link("", Wish(wish.where, name, turned), name + mark)


def _row(one: Known, names: Sequence[str]) -> str:
    run, cells = one
    address = html.escape(urlencode({"name": run.run}))
    label = html.escape(run.name)
    folder = f'<div class="quiet">{html.escape(run.run)}</div>' if run.name != run.run else ""
    notes = f'<div class="bad">{html.escape("; ".join(run.notes))}</div>' if run.notes else ""
    texts = "".join(
        f'<td data-head="{html.escape(name)}"{_kind(name, run.state)}>'
        f"{html.escape(cells.get(name, EMPTY).text)}</td>"
        for name in names
    )
    return (
        f'<tr><td><input type="checkbox" name="name" value="{html.escape(run.run)}"'
        f' aria-label="compare {label}"></td><th scope=row><a href="/run?{address}">{label}</a>'
        f"{folder}{notes}</th>{texts}</tr>"
    )


def _kind(name: str, state: str) -> str:
    word = state.partition(":")[0]
    return f' class="{word}"' if name == "state" and word in ("running", "crashed") else ""
