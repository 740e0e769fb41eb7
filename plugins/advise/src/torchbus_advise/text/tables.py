"""The tables: one number of GPUs by part of the memory, or several numbers by total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchbus_advise.estimate.rows import Row
from torchbus_advise.text.amounts import number, seconds, size, unit_for
from torchbus_advise.text.grid import grid

HEAD = ("params", "grads", "states", "activ.", "comm", "total", "sent", "step", "eff.", "fits")
LEGEND = """\
On the rank that needs most, with the script's batch on each rank. params: with buffers. activ.:
what autograd keeps for backward. comm: gradient buckets, or gathered units with their gradients.
sent: by a rank in a step. step, eff. (the part of it that computes): estimates. 10 % of the memory
are left for what kernels, the allocator and the context take, which is unknown."""
AS_IT_IS = "without further options"


def by_part(rows: Sequence[Row]) -> str:
    """``fits``: in the GPU's memory."""
    unit, least = unit_for(row.memory.total for row in rows)
    lines: list[Sequence[str]] = [(f"{unit} a rank", *HEAD)]
    for heading, group in _grouped(rows):
        lines += [[heading], *(_parts(row, least) for row in group)]
    return grid(lines)


def by_ranks(rows: Mapping[int, Sequence[Row]]) -> str:
    """Totals; a star marks what does not fit."""
    every = [row for found in rows.values() for row in found]
    unit, least = unit_for(row.memory.total for row in every)
    cells = {(row.plan.label, ranks): row for ranks, found in rows.items() for row in found}
    heads = (f"{ranks} GPU{'s' if ranks > 1 else ''} " for ranks in rows)
    lines: list[Sequence[str]] = [(f"{unit} a rank (*: does not fit)", *heads)]
    for heading, group in _grouped(every):
        lines.append([heading])
        for plan in dict.fromkeys(row.plan for row in group):
            totals = (_total(cells.get((plan.label, ranks)), least) for ranks in rows)
            lines.append((f"  {plan.strategy.label}", *totals))
    return grid(lines)


def _grouped(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """By the options that are not the strategy's own."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(", ".join(row.plan.options) or AS_IT_IS, []).append(row)
    return list(groups.items())


def _parts(row: Row, least: int) -> tuple[str, ...]:
    held = row.memory
    parts = (held.parameters, held.gradients, held.states, held.activations, held.exchange)
    return (
        f"  {row.plan.strategy.label}",
        *(number(part / least) for part in (*parts, held.total)),
        size(row.sent_bytes),
        seconds(row.pace.step_s),
        f"{100 * row.pace.efficiency:.0f}%",
        "yes" if row.fits else "no",
    )


def _total(row: Row | None, least: int) -> str:
    return "" if row is None else number(row.memory.total / least) + (" " if row.fits else "*")
