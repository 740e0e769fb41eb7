"""Validates the options of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.nn import Module
from torchbus.plugin import UsageError, expect

from torchbus_pipeline.model import balance as balances

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

        Raises UsageError if it does not divide the world.
        """
        size = self.stages if self.stages is not None else world_size
        if world_size % size:
            raise UsageError(
                f"{world_size} ranks and stages={size}: pipelines of {size} ranks each need a"
                f" multiple of {size} ranks; change devices= or stages="
            )
        return size

    def stages_of_rank(self) -> int:
        """The minimum number of stages per rank."""
        return 2 if self.schedule == INTERLEAVED else 1

    def balance_of(
        self, model: str, layers: list[Module], ranks: int, seconds: Sequence[float] | None
    ) -> list[int]:
        """Return the number of layers per stage. Raises UsageError if ``balance`` doesn't fit.

        ``seconds``: how long each layer computes, if that was measured.
        """
        stages = ranks * self.stages_of_rank()
        if isinstance(self.balance, str):
            if seconds is not None:
                return balances.by_weight(seconds, stages)
            return balances.by_parameters(layers, stages)
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
