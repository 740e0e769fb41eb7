"""The tables of a recording: printed, and in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchbus_cli.parser import table
from torchbus_profile.result import Operator, Profiled
from torchbus_profile.shares import Shares

Row = tuple[str, ...]


def of_ranks(parts: Mapping[int, tuple[float, Shares]]) -> list[Row]:
    """A row for each rank, below the heads."""
    heads = ("rank", "ms", *Shares._fields)
    return [
        heads,
        *(
            (str(rank), f"{1e3 * seconds:.1f}", *map(_percent, shares))
            for rank, (seconds, shares) in parts.items()
        ),
    ]


def of_operators(word: str, operators: Sequence[Operator]) -> list[Row]:
    """A row for each operator or range, below the heads."""
    return [
        (word, "calls", "ms", "share"),
        *(
            (one.name, str(one.calls), f"{1e3 * one.seconds:.3f}", _percent(one.share))
            for one in operators
        ),
    ]


def text(found: Profiled, parts: Mapping[int, tuple[float, Shares]]) -> str:
    """What is printed at the end of the session."""
    tables = [of_ranks(parts), of_operators("operator", found.operators)]
    tables += [of_operators("range", found.ranges)] if found.ranges else []
    where = f"; traces beside {found.trace}" if found.trace else ""
    heading = f"profile: steps {found.first_step} to {found.last_step}{where}"
    return "\n".join((heading, *(table(rows) for rows in tables if rows[1:])))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
