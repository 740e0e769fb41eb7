"""The rates of a window of steps, on one device and over all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Part(NamedTuple):
    """One rank's part of a window. NaN is what is not known.

    ``samples`` and ``tokens``: their numbers. ``flops``: floating-point operations. ``mfu``: from 0
    to 1. ``joules``: what the device has used.
    """

    seconds: float = math.nan
    samples: float = math.nan
    tokens: float = math.nan
    flops: float = math.nan
    mfu: float = math.nan
    joules: float = math.nan


@dataclass(frozen=True)
class Rates:
    """How fast training was. None is what is not known.

    ``samples_per_sec``, ``tokens_per_sec``: of batches that fed a backward. ``flops_per_sec``:
    floating-point operations. ``mfu``: their part of the device's peak, from 0 to 1; of several
    devices, the mean. ``joules_per_sample``: what the devices have used.
    """

    samples_per_sec: float | None
    tokens_per_sec: float | None
    flops_per_sec: float | None
    mfu: float | None
    joules_per_sample: float | None


@dataclass(frozen=True)
class Window(Rates):
    """A window of real steps. Its rates are those of all ranks together.

    ``step``: its last step. ``steps``: how many it has. ``seconds``: how long they took on this
    rank, without evaluation. ``samples``, ``tokens``: their numbers. ``ranks``: of so many ranks.
    ``device``: the rates of this rank's device.
    """

    step: int
    steps: int
    seconds: float
    steps_per_sec: float | None
    samples: int | None
    tokens: int | None
    ranks: int
    device: Rates


def rates(parts: Sequence[Part]) -> dict[str, float]:
    """Return the rates of several parts together. One that is NaN in a part is NaN."""
    return {
        "samples_per_sec": sum(per(one.samples, one.seconds) for one in parts),
        "tokens_per_sec": sum(per(one.tokens, one.seconds) for one in parts),
        "flops_per_sec": sum(per(one.flops, one.seconds) for one in parts),
        "mfu": per(sum(one.mfu for one in parts), len(parts)),
        "joules_per_sample": per(
            sum(one.joules for one in parts), sum(one.samples for one in parts)
        ),
    }


def window(step: int, steps: int, parts: Sequence[Part], device: Part) -> Window:
    """Return a window. ``parts``: one of each rank. ``device``: all of this rank's work."""
    return Window(
        **{name: known(value) for name, value in rates(parts).items()},
        step=step,
        steps=steps,
        seconds=device.seconds,
        steps_per_sec=known(per(steps, device.seconds)),
        samples=_whole(sum(one.samples for one in parts)),
        tokens=_whole(sum(one.tokens for one in parts)),
        ranks=len(parts),
        device=Rates(**{name: known(value) for name, value in rates([device]).items()}),
    )


def per(amount: float, of: float) -> float:
    """Return a quotient, or NaN if there is none."""
    return amount / of if of > 0 else math.nan


def known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _whole(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None
