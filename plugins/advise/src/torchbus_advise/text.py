"""The terminal output of ``torchbus advise``."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence

from torchbus_advise.facts import ObservedFacts
from torchbus_advise.plans import PRECISIONS
from torchbus_advise.rows import Machine, PlanRow, Recommendation
from torchbus_advise.trial import Survey


def found(survey: Survey) -> str:
    facts = survey.facts["32"]
    lines = [_model(facts), _passes(facts)]
    if facts.hindrances:
        refused = ", ".join(facts.hindrances)
        lines.append(f"sharded strategies are left out: they refuse {refused}")
    if survey.real is not None:
        lines.append(_real(survey.real, facts))
    return "\n".join(lines)


def _model(facts: ObservedFacts) -> str:
    count = sum(one.bytes for one in facts.parameters)
    trained = sum(one.gradient_bytes for one in facts.parameters)
    states = sum(one.state_bytes + one.scalar_bytes for one in facts.parameters)
    names = ", ".join(one.name for one in facts.optimizers)
    blocks = f"; {facts.blocks} blocks that repeat" if facts.blocks else ""
    return (
        f"{size(count)} of parameters in {len(facts.parameters)} tensors, {size(trained)} of"
        f" gradients, {size(states)} of states ({names}){blocks}"
    )


def _passes(facts: ObservedFacts) -> str:
    largest = max(facts.passes, key=lambda one: one.activation_bytes)
    batch = "a batch" if largest.samples is None else f"a batch of {largest.samples}"
    return (
        f"{batch} makes {size(largest.activation_bytes)} of activations and"
        f" {largest.flops / 1e9:.3g} GFLOPs, forward and backward"
    )


def _real(real: ObservedFacts, facts: ObservedFacts) -> str:
    if real is facts:
        return "with real values only"
    held = max(one.activation_bytes for one in real.passes)
    pace = f"; a step takes {seconds(real.step_s)} here" if real.step_s else ""
    return f"with real values the activations are {size(held)}{pace}"


ADAPTIVE = ("adam", "lamb", "adagrad", "rmsprop", "lion", "adadelta", "sophia")


def hints(
    choice: Recommendation,
    rows: Sequence[PlanRow],
    facts: ObservedFacts,
    real: ObservedFacts | None,
    options: Collection[str],
) -> list[str]:
    row = choice.row
    if row is None:
        return []
    return [
        line
        for line in (
            largest_batch(row, rows, facts),
            precision(row),
            learning_rate(row, facts, options),
            workers(row, real or facts),
        )
        if line
    ]


def largest_batch(row: PlanRow, rows: Sequence[PlanRow], facts: ObservedFacts) -> str:
    if facts.passes[0].samples is None:
        times = row.largest_batch
        return (
            f"batch: {times} times the script's would fit (no DataLoader was seen to count samples)"
        )
    there = None if facts.loader is None else facts.loader.samples
    if there is not None and row.largest_batch * row.machine.ranks >= there:
        return (
            f"batch: all {there} samples of the data set fit into one step of {row.machine.ranks}"
            f" ranks; the script has {row.batch} on each"
        )
    most = max(rows, key=lambda one: one.largest_batch)
    more = f"; {most.largest_batch} with {most.plan.label}" if most.plan != row.plan else ""
    return (
        f"batch: the largest that fits is {row.largest_batch} samples on each rank, "
        f"{row.largest_batch * row.machine.ranks} a step; the script has {row.batch}{more}"
    )


def precision(row: PlanRow) -> str:
    if row.plan.precision == "32":
        return ""
    return (
        f"precision: with {PRECISIONS[row.plan.precision]} products have 8 significant bits. Leave "
        "it out to keep today's numbers, if a row without it fits"
    )


def learning_rate(row: PlanRow, facts: ObservedFacts, options: Collection[str]) -> str:
    ranks = row.machine.ranks
    if ranks == 1 or not facts.optimizers:
        return ""
    first = facts.optimizers[0]
    rate = first.rates[0]
    usual = "sqrt" if any(word in first.name.lower() for word in ADAPTIVE) else "linear"
    how = f'; scale_lr="{usual}", warmup_steps=... does it' if "scale_lr" in options else ""
    keep = '; batch="global" keeps batch and rate as they are' if "batch" in options else ""
    return (
        f"learning rate: a step has {ranks} times the samples. Linear scaling makes {rate:g} into "
        f"{rate * ranks:.3g} (Goyal et al. 2017: SGD on ImageNet, with warm-up; beyond batches of "
        f"8192 accuracy fell). Square-root scaling makes it {rate * math.sqrt(ranks):.3g} (You et "
        "al. 2019, with LAMB; AdamW fell short at their largest batches). Neither is a law: "
        f"compare both{how}{keep}"
    )


def workers(row: PlanRow, facts: ObservedFacts) -> str:
    if facts.loader is None or facts.loader.load_s is None:
        return ""
    load_s, step_s = facts.loader.load_s, row.pace.step_s
    wanted = math.ceil(load_s / step_s) if load_s > 0.05 * step_s else 0
    return (
        f"loader: one process of this machine ({_cores()} cores) reads a batch in "
        f"{seconds(load_s)}, and a step is estimated at {seconds(step_s)}: num_workers={wanted} on "
        f"each rank; the script has {facts.loader.workers}"
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def recommendation(choice: Recommendation, rows: Sequence[PlanRow], machine: Machine) -> list[str]:
    """Return the lines to print. ``rows`` are those of the machine in the call."""
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


def call(row: PlanRow) -> str:
    devices = row.machine.ranks // row.machine.nodes
    nodes = f", num_nodes={row.machine.nodes}" if row.machine.nodes > 1 else ""
    return f"session({row.plan.arguments}, devices={devices}{nodes})"


def reason(choice: Recommendation, rows: Sequence[PlanRow], machine: Machine) -> tuple[str, str]:
    """Return why the plan fits, and why it is best. ``choice`` must have a row."""
    row = choice.row
    assert row is not None
    return _why_it_fits(choice, row, rows, machine), _why_it_is_best(row)


def _why_it_fits(
    choice: Recommendation, row: PlanRow, rows: Sequence[PlanRow], machine: Machine
) -> str:
    need = f"{size(row.memory.total)} a rank"
    room = f"the {size(machine.room_bytes)} that can be planned for"
    if choice.needs_batch is not None:
        return (
            f"The script's batch of {row.batch} needs {need} and fits nowhere: with"
            f" batch_size={choice.needs_batch} this fits {room}."
        )
    if choice.needs_ranks is not None:
        return f"{machine.ranks} GPUs are too few: {need} first fit on {choice.needs_ranks} GPUs."
    first = rows[0]
    if first.plan == row.plan:
        return f"It is the plainest, needs {need}, and fits {room}."
    other = f"{first.plan.label} would need {size(first.memory.total)} a rank"
    also = ", which fits too" if first.fits else ""
    return f"{other}{also}; this needs {size(row.memory.total)} of {room}."


def _why_it_is_best(row: PlanRow) -> str:
    step = f"about {seconds(row.pace.step_s)} a step"
    part = f"{100 * row.pace.efficiency:.0f} % of it computing"
    if row.machine.ranks == 1:
        return f"The estimate for one {row.machine.gpu.name} is {step}, {part}."
    sent = f"each rank sends {size(row.sent_bytes)}"
    return f"No other plan that fits is estimated faster by more than 5 %: {step}, {part}; {sent}."


HEAD = ("params", "grads", "states", "activ.", "comm", "total", "sent", "step", "eff.", "fits")
LEGEND = """\
On the rank that needs most, with the script's batch on each rank. params: with buffers. activ.:
what autograd keeps for backward. comm: gradient buckets, or gathered units with their gradients.
sent: by a rank in a step. step, eff. (the part of it that computes): estimates. 10 % of the memory
is left for what kernels, the allocator and the context take, which is unknown."""
AS_IT_IS = "without further options"


def by_part(rows: Sequence[PlanRow]) -> str:
    """Return a table of memory by part, and whether each row fits in the GPU's memory."""
    unit, least = unit_for(row.memory.total for row in rows)
    lines: list[Sequence[str]] = [(f"{unit} a rank", *HEAD)]
    for heading, group in _grouped(rows):
        lines += [[heading], *(_parts(row, least) for row in group)]
    return grid(lines)


def by_ranks(rows: Mapping[int, Sequence[PlanRow]]) -> str:
    """Return a table of totals by number of ranks. A star marks totals that do not fit."""
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


def _grouped(rows: Sequence[PlanRow]) -> list[tuple[str, list[PlanRow]]]:
    """Group rows by the options that are not the strategy's own."""
    groups: dict[str, list[PlanRow]] = {}
    for row in rows:
        groups.setdefault(", ".join(row.plan.options) or AS_IT_IS, []).append(row)
    return list(groups.items())


def _parts(row: PlanRow, least: int) -> tuple[str, ...]:
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


def _total(row: PlanRow | None, least: int) -> str:
    return "" if row is None else number(row.memory.total / least) + (" " if row.fits else "*")


UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def number(value: float) -> str:
    """Format a number as in ``0.34``, ``3.4`` or ``34``: two digits, or those before the point."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"


def size(count: float) -> str:
    """Format a number of bytes as in ``3.4 GiB`` or ``12 MiB``."""
    for unit, least in UNITS:
        if count >= least:
            return f"{number(count / least)} {unit}"
    return f"{count:.0f} bytes"


def seconds(value: float) -> str:
    """Format a time as in ``12 ms`` or ``3.4 s``."""
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def unit_for(counts: Iterable[float]) -> tuple[str, int]:
    """Return one unit for all counts: GiB, or MiB if the largest is less than one GiB."""
    return UNITS[0] if max(counts) >= UNITS[0][1] else UNITS[1]


WIDTH = 100


def grid(lines: Sequence[Sequence[str]]) -> str:
    """Align the cells of lines. A line with a single cell is a heading."""
    rows = [line for line in lines if len(line) > 1]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *remaining = cells
    numbers = [cell.rjust(width) for cell, width in zip(remaining, widths[1:], strict=False)]
    return "  ".join([first.ljust(widths[0]), *numbers]).rstrip()


def wrapped(text: str) -> list[str]:
    """Return lines of at most 100 columns; indented lines stay indented."""
    return [part for line in text.split("\n") for part in _broken(line)]


def _broken(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    further = indent or "  "
    return textwrap.wrap(
        line,
        WIDTH,
        subsequent_indent=further,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [""]
