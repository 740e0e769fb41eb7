"""Selects, sorts and filters runs by facts, logged values and hyperparameters."""

from __future__ import annotations

import csv
import difflib
import io
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torchbus.plugin import UsageError

from torchbus_report.runs.summary import LoggedRun, RunNumbers, of, short

FACTS = ("run", "name", "state", "ranks", "steps", "time", "loss")
MOST_VALUES = 4
LONG = "hyperparams."
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Cell:
    """A fact about a run, with a ``value`` to compare and a ``text`` to show."""

    value: float | str
    text: str


Known = tuple[RunNumbers, dict[str, Cell]]


@dataclass(frozen=True)
class Wish:
    """A selection of runs: those that meet all conditions in ``where``, sorted by a name."""

    where: Sequence[str] = ()
    sort: str = ""
    reverse: bool = False


def known(run: LoggedRun) -> Known:
    found = of(run)
    return found, cells(found)


def chosen(runs: Sequence[Known], wish: Wish, names: Sequence[str] = ()) -> list[Known]:
    """Return the runs that the wish selects, in its order.

    Raises UsageError if no run has a value for one of the ``names``, or for a name in the wish.
    """
    conditions = [condition(text) for text in wish.where]
    asked = [name for name, _ in conditions] + [*names, *([wish.sort] if wish.sort else [])]
    refuse_unknown(asked, [known for _, known in runs])
    left = [one for one in runs if all(holds(one[1].get(name)) for name, holds in conditions)]
    if not wish.sort:
        return left[::-1] if wish.reverse else left
    sortable = [one for one in left if is_known(one[1].get(wish.sort))]
    others = [one for one in left if not is_known(one[1].get(wish.sort))]
    sortable.sort(key=lambda one: order(one[1].get(wish.sort)), reverse=wish.reverse)
    return sortable + others


def as_csv(runs: Sequence[dict[str, Cell]], names: Sequence[str]) -> str:
    """Return a table for spreadsheets."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([_inert(name) for name in names])
    for known in runs:
        rows.writerow([_inert(known[name].value) if name in known else "" for name in names])
    return text.getvalue()


def _inert(value: float | str) -> float | str:
    """Return a value that a spreadsheet does not interpret as a formula.

    Whole numbers are returned without a decimal point.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return f"'{value}" if value.startswith(tuple("=+-@\t")) else value


def cells(run: RunNumbers) -> dict[str, Cell]:
    """Return all that is known: facts, last values, their min: and max:, and hyperparameters.

    Of equal names, the first in this order is used. ``hyperparams.NAME`` is always available.
    """
    found: dict[str, Cell] = {}
    exact = {"time": run.duration_s, "loss": run.loss, "best loss": run.best_loss}
    exact |= {"steps": float(run.steps), "ranks": float(run.ranks), "samples/s": run.samples_per_s}
    for name, text in run.cells().items():
        known = exact.get(name)
        found[name] = Cell(text if known is None else known, text)
    for prefix, values in (("", run.values), ("min:", run.least), ("max:", run.greatest)):
        for name, value in values.items():
            found.setdefault(prefix + name, Cell(value, short(value)))
    for name, setting in run.hyperparams.items():
        cell = Cell(number(setting), setting)
        found[LONG + name] = cell
        found.setdefault(name, cell)
    return found


def number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def usual(runs: Iterable[RunNumbers]) -> tuple[list[str], list[str]]:
    """Return the columns of a table, and the names of logged values that it leaves out."""
    names = list(dict.fromkeys(name for run in runs for name in run.logged_names))
    shown = [name for name in names if name not in FACTS]
    return [*FACTS, *shown[:MOST_VALUES], "notes"], shown[MOST_VALUES:]


def everything(runs: Sequence[dict[str, Cell]]) -> list[str]:
    """Return the columns of a CSV file: all names except repetitions (``hyperparams.NAME``)."""
    names = list(dict.fromkeys(name for run in runs for name in run))
    return [name for name in names if not all(_is_repeated(name, run) for run in runs)]


def _is_repeated(name: str, run: dict[str, Cell]) -> bool:
    return name.startswith(LONG) and run.get(name) is run.get(name[len(LONG) :])


def refuse_unknown(names: Iterable[str], runs: Sequence[dict[str, Cell]]) -> None:
    """Raise UsageError for a name that no run has."""
    known = {name for run in runs for name in run}
    for name in names:
        if runs and name not in known:
            near = difflib.get_close_matches(name, known, 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(f"no run has logged {name!r}, or has it as a hyperparameter{hint}")


def condition(text: str) -> tuple[str, Callable[[Cell | None], bool]]:
    """Parse "val/acc>=0.9": a name, a comparison, and a number or a text. Raises UsageError."""
    found = re.fullmatch(r"(.+?)\s*(>=|<=|!=|=|>|<)\s*(.*)", text)
    if found is None:
        raise UsageError(
            f"--where {text!r}: write a name, one of >= <= != = > <, and a value, as in"
            " 'val/acc>=0.9'"
        )
    name, sign, value = found[1], found[2], number(found[3])
    if sign not in ("=", "!=") and isinstance(value, str):
        raise UsageError(f"--where {text!r}: {sign} compares numbers, and {value!r} is not one")

    def holds(cell: Cell | None) -> bool:
        if cell is None:
            return False
        if isinstance(value, float) and isinstance(cell.value, float):
            return COMPARED[sign](cell.value, value)
        return sign in ("=", "!=") and COMPARED[sign](cell.text, found[3])

    return name, holds


def order(cell: Cell | None) -> tuple[int, float, str]:
    """Return the key to sort by: numbers first, and then texts."""
    value = "" if cell is None else cell.value
    return (0, value, "") if isinstance(value, float) else (1, 0.0, value)


def is_known(cell: Cell | None) -> bool:
    """Whether there is a value to sort by. NaN does not count."""
    value = "" if cell is None else cell.value
    return not math.isnan(value) if isinstance(value, float) else bool(value)
