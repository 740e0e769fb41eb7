"""Validates the options of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch.nn import Module
from torchbus.plugin import UsageError, expect

AUTO = "auto"
PARAMETERS, TIME = "parameters", "time"
GPIPE, INTERLEAVED = "gpipe", "interleaved"
SCHEDULES = (GPIPE, "1f1b", INTERLEAVED)


@dataclass(frozen=True)
class PipelineOptions:
    """The validated options of ``Pipeline``."""

    balance: tuple[int, ...] | str
    microbatches: int
    schedule: str
    blocks: str
    stages: int | None

    def __post_init__(self) -> None:
        expect("microbatches", self.microbatches, int, "a number of parts of a batch")
        expect("stages", self.stages, (int, type(None)), "a number of stages")
        expect("blocks", self.blocks, str, "'auto', or the path of a list of blocks")
        if self.schedule not in SCHEDULES:
            names = ", ".join(map(repr, SCHEDULES[:-1]))
            raise UsageError(
                f"schedule={self.schedule!r} is unknown: use {names} or {SCHEDULES[-1]!r}"
            )
        for name in ("microbatches", "stages"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}: it must be 1 or more")

    def ranks_of_pipeline(self, world_size: int) -> int:
        """Return the number of ranks per pipeline.

        Raises UsageError if ``world_size`` is not a multiple of it.
        """
        size = self.stages if self.stages is not None else world_size
        if world_size % size:
            raise UsageError(
                f"{world_size} ranks and stages={size}: pipelines of {size} ranks each need a"
                f" multiple of {size} ranks; change devices= or stages="
            )
        return size

    def stages_of_rank(self) -> int:
        """Return the minimum number of stages per rank."""
        return 2 if self.schedule == INTERLEAVED else 1

    def balance_of(
        self, model: str, layers: list[Module], ranks: int, seconds: Sequence[float] | None
    ) -> list[int]:
        """Return the number of layers per stage. Raises UsageError if ``balance`` doesn't fit.

        ``seconds`` are the times of the layers, or None if they were not measured.
        """
        stages = ranks * self.stages_of_rank()
        if isinstance(self.balance, str):
            if seconds is not None:
                return by_weight(seconds, stages)
            return by_parameters(layers, stages)
        given = list(self.balance)
        if sum(given) != len(layers):
            raise UsageError(
                f"balance={given}: these are {sum(given)} layers, and {model} has {len(layers)}."
                " Change balance="
            )
        interleaved = self.schedule == INTERLEAVED and len(given) % ranks == 0
        if len(given) != stages and not interleaved:
            raise UsageError(
                f"balance={given}: these are {len(given)} stages, and {ranks} ranks have {stages}"
                f" with schedule={self.schedule!r}; change balance=, devices= or stages="
            )
        return given


def read_balance(balance: object) -> tuple[int, ...] | str:
    """Return the numbers of layers, "parameters" or "time". Raises UsageError for anything else."""
    if balance in (AUTO, PARAMETERS, TIME):
        return TIME if balance == TIME else PARAMETERS
    numbers = list(balance) if isinstance(balance, list | tuple) else []
    if not numbers or not all(type(one) is int and one > 0 for one in numbers):
        raise UsageError(
            f"balance={balance!r}: use 'auto' (by parameters), 'time', or a list with each stage's"
            " number of layers, such as [2, 3]"
        )
    return tuple(numbers)


def by_weight(weights: Sequence[float], stages: int) -> list[int]:
    """Cut weights into consecutive groups, so that the heaviest group is as light as possible.

    Each group has at least one member. Returns the sizes of the groups.

    >>> by_weight([1, 1, 1, 9, 1, 1], 3)
    [3, 1, 2]
    """
    total, count = [0.0, *accumulate(weights)], len(weights)
    none: list[int] = []
    rows = [{0: (0.0, none)}]  # for each number of groups: end -> (heaviest, sizes)
    for group in range(1, stages + 1):
        row: dict[int, tuple[float, list[int]]] = {}
        for end in range(group, count - (stages - group) + 1):
            row[end] = min(
                (
                    (max(heaviest, total[end] - total[start]), [*sizes, end - start])
                    for start, (heaviest, sizes) in rows[-1].items()
                    if start < end
                ),
                key=lambda found: (found[0], sum(size * size for size in found[1])),
            )
        rows.append(row)
    return rows[-1][count][1]


def by_parameters(layers: Sequence[Module], stages: int) -> list[int]:
    """Cut layers into stages by the number of their parameters."""
    return by_weight([1.0 + sum(p.numel() for p in one.parameters()) for one in layers], stages)
