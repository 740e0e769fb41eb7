"""The line to paste, and its reason in two sentences."""

from __future__ import annotations

from collections.abc import Sequence

from torchbus_advise.estimate.choice import Choice
from torchbus_advise.estimate.rows import Machine, Row
from torchbus_advise.text.amounts import seconds, size


def recommendation(choice: Choice, rows: Sequence[Row], machine: Machine) -> list[str]:
    """Lines. ``rows``: those of the machine that was asked for."""
    if choice.row is None:
        return [
            f"nothing fits {machine.gpu.memory_gib:g} GiB, on any number of GPUs and with any"
            " batch: the rows above say which part is too large"
        ]
    row = choice.row
    return [
        f"with {call(row)}:",
        *(f"    {sentence}" for sentence in reason(choice, rows, machine)),
    ]


def call(row: Row) -> str:
    devices = row.machine.ranks // row.machine.nodes
    nodes = f", num_nodes={row.machine.nodes}" if row.machine.nodes > 1 else ""
    return f"session({row.plan.words}, devices={devices}{nodes})"


def reason(choice: Choice, rows: Sequence[Row], machine: Machine) -> tuple[str, str]:
    """``choice`` has a row."""
    row = choice.row
    assert row is not None
    return _why_it_fits(choice, row, rows, machine), _why_it_is_best(row)


def _why_it_fits(choice: Choice, row: Row, rows: Sequence[Row], machine: Machine) -> str:
    need = f"{size(row.memory.total)} a rank"
    room = f"the {size(machine.room_bytes)} that can be planned for"
    if choice.needs_batch is not None:
        return (
            f"The script's batch of {row.batch} needs {need} and fits nowhere: with"
            f" batch_size={choice.needs_batch} this fits {room}."
        )
    if choice.needs_ranks is not None:
        return (
            f"{machine.ranks} GPUs are too few: {choice.needs_ranks} are the first that {need} fit."
        )
    first = rows[0]
    if first.plan == row.plan:
        return f"It is the plainest, needs {need}, and fits {room}."
    other = f"{first.plan.label} would need {size(first.memory.total)} a rank"
    also = ", which fits too" if first.fits else ""
    return f"{other}{also}; this needs {size(row.memory.total)} of {room}."


def _why_it_is_best(row: Row) -> str:
    step = f"about {seconds(row.pace.step_s)} a step"
    part = f"{100 * row.pace.efficiency:.0f} % of it computing"
    if row.machine.ranks == 1:
        return f"The estimate for one {row.machine.gpu.name} is {step}, {part}."
    sent = f"each rank sends {size(row.sent_bytes)}"
    return f"No other plan that fits is estimated faster by more than 5 %: {step}, {part}; {sent}."
