"""The options of ``s.log``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from torchbus.plugin import UsageError

Reduction = Literal["mean", "sum", "max", "min"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)


class LogOptions(TypedDict, total=False):
    """What ``s.log`` takes beside name and value."""

    on_step: bool | None
    on_epoch: bool
    sync_dist: bool | None
    reduce: Reduction
    batch_size: float | None
    prog_bar: bool
    step: int | None


@dataclass(slots=True)
class How:
    """How to log a value. By default, ``on_step`` is the opposite of ``on_epoch``."""

    on_step: bool | None = None
    on_epoch: bool = False
    sync_dist: bool | None = None
    reduce: str = "mean"
    batch_size: float | None = None
    prog_bar: bool = False
    step: int | None = None

    @property
    def in_step(self) -> bool:
        return not self.on_epoch if self.on_step is None else self.on_step


OPTIONS = frozenset(field.name for field in dataclasses.fields(How))
PLAINLY = How()


def how(options: dict[str, Any]) -> How:
    """Return the options. Raises UsageError for an unknown option or reduction."""
    if not options.keys() <= OPTIONS:
        unknown = sorted(options.keys() - OPTIONS)
        raise UsageError(
            f"s.log has no option {unknown[0]!r}: there are {', '.join(sorted(OPTIONS))}"
        )
    found = How(**options)
    if found.reduce not in REDUCTIONS:
        raise UsageError(f"reduce={found.reduce!r} is unknown: use one of {', '.join(REDUCTIONS)}")
    return found
