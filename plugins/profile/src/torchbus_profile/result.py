"""What one recording shows, on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torchbus_profile.shares import Shares


class Operator(NamedTuple):
    """An operator, or a range of ``s.range``.

    ``calls``: in the recorded steps. ``seconds``: of an operator, without those that it called; on
    an accelerator, of its kernels. Of a range, from its begin to its end on the host. ``share``:
    its part of the recorded time, from 0 to 1.
    """

    name: str
    calls: int
    seconds: float
    share: float


@dataclass(frozen=True)
class Profiled:
    """The recorded steps, from ``first_step`` to ``last_step``.

    ``seconds``: how long they took, with the profiler. ``shares``: what they went to.
    ``operators``: the ten that took longest. ``ranges``: those of ``s.range``, by their names.
    ``trace``: the file, or "" if it could not be written.
    """

    first_step: int
    last_step: int
    seconds: float
    shares: Shares
    operators: tuple[Operator, ...]
    ranges: tuple[Operator, ...]
    trace: str
