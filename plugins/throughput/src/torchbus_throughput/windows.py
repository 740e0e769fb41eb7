"""The rates of a window of steps, on one device and over all ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchbus.plugin import Context, SharedStore

SLOTS = 2  # a rank may be one window ahead of another
RANKS_THAT_REPORT_ALL = 1000
END = -1
"""The number of the whole session. It takes the place of no window: another rank may still ask."""


class Exchange:
    """Each rank writes its part of a window. A reader gets all of them at once.

    With one rank, nothing is written. ``every``: ranks report one window in so many.
    """

    def __init__(self, session: Context) -> None:
        self._rank, self._count = session.rank, session.world_size
        self._store: SharedStore | None = (
            session.world.shared.within("throughput") if session.world_size > 1 else None
        )
        self.every = 1 + (self._count - 1) // RANKS_THAT_REPORT_ALL

    def is_published(self, number: int) -> bool:
        """Whether ranks report this window."""
        return number == END or number % self.every == 0

    def publish(self, number: int, part: Part) -> None:
        """Write this rank's part of a window. Does not wait."""
        if self._store is not None:
            self._store.set(self._key(self._rank, number), json.dumps([number, *part]))

    def parts(self, number: int, local: Part) -> list[Part] | None:
        """Return all ranks' parts of a window, or None if a rank has not come so far."""
        if self._store is None:
            return [local]
        found = self._store.read_all([self._key(rank, number) for rank in range(self._count)])
        reported = [json.loads(text) for text in found or ()]
        is_whole = found is not None and all(one[0] == number for one in reported)
        return [Part(*one[1:]) for one in reported] if is_whole else None

    def _key(self, rank: int, number: int) -> str:
        return f"{rank}/{'end' if number == END else number // self.every % SLOTS}"


PREFIX = "throughput/"
ALWAYS = ("samples_per_sec",)


class Sending:
    """Hands rates to torchbus-log, whose next log point reduces them over ranks.

    ``names``: the rates to send, the same on all ranks. With several ranks, one that is not known
    here is sent as NaN: ranks that log different names would differ.
    """

    def __init__(self, session: Context, names: Collection[str]) -> None:
        self._session = session
        self._names = names

    def send(self, step: int, steps: int, local: Part, device: Part) -> None:
        """Send a window that ends at ``step``.

        ``local``: what this rank adds to the sum. ``device``: what its device has done.
        """
        if not self._session.bus.has_listeners("log_metrics"):
            return
        here = {f"device/{name}": value for name, value in self._rates(device).items()}
        here["steps_per_sec"] = per(steps, device.seconds)
        here = {name: value for name, value in here.items() if known(value) is not None}
        mine = self._rates(local)
        joules = {name: mine.pop(name) for name in list(mine) if name == "joules_per_sample"}
        # the mean over ranks, of as many times a part as there are ranks, is the sum of the parts
        times = {name: 1 if name == "mfu" else self._session.world_size for name in mine}
        self._log(here, step=step)
        self._log(
            {name: value * times[name] for name, value in mine.items()},
            step=step,
            sync_dist=True,
            batch_size=1.0,
        )
        self._log(joules, step=step, sync_dist=True, batch_size=local.samples)

    def _rates(self, part: Part) -> dict[str, float]:
        found = rates([part])
        return {
            name: value
            for name, value in found.items()
            if name in self._names and (self._session.world_size > 1 or known(value) is not None)
        }

    def _log(self, values: Mapping[str, float], **options: object) -> None:
        if values:
            self._session.bus.hook.log_metrics(
                metrics={PREFIX + name: value for name, value in values.items()}, options=options
            )


class Part(NamedTuple):
    """One rank's part of a window. NaN is what is not known.

    ``samples`` and ``tokens``: their numbers. ``flops``: floating-point operations. ``mfu``: from 0
    to 1. ``joules``: the device's energy.
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
    devices, the mean. ``joules_per_sample``: the devices' energy.
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
