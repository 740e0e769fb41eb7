"""Computes the rates of each window from counts and times."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchbus.plugin import Context, SharedStore, warn

from torchbus_throughput.clock import DeviceSpan, DeviceStopwatch, Power
from torchbus_throughput.counts import Counts, Tally
from torchbus_throughput.flops import Flops, Peak

SLOTS = 2  # a rank may be one window ahead of another
RANKS_THAT_REPORT_ALL = 1000
END = -1
"""The number of the whole session. It takes the place of no window: another rank may still ask."""


class WindowExchange:
    """Each rank writes its part of a window. A reader gets all of them at once.

    With one rank, nothing is written. ``every``: ranks report one window in ``every``.
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

    def publish(self, number: int, part: WindowPart) -> None:
        """Write this rank's part of a window. Does not wait."""
        if self._store is not None:
            self._store.set(self._key(self._rank, number), json.dumps([number, *part]))

    def parts(self, number: int, local: WindowPart) -> list[WindowPart] | None:
        """Return all ranks' parts of a window, or None if a rank has not come so far."""
        if self._store is None:
            return [local]
        found = self._store.read_all([self._key(rank, number) for rank in range(self._count)])
        reported = [json.loads(text) for text in found or ()]
        is_whole = found is not None and all(one[0] == number for one in reported)
        return [WindowPart(*one[1:]) for one in reported] if is_whole else None

    def _key(self, rank: int, number: int) -> str:
        return f"{rank}/{'end' if number == END else number // self.every % SLOTS}"


PREFIX = "throughput/"


class Sending:
    """Hands rates to torchbus-log, whose next log point reduces them over ranks.

    ``names``: the rates to send, the same on all ranks. With several ranks, one that is not known
    here is sent as NaN: ranks that log different names would differ.
    """

    def __init__(self, session: Context, names: Collection[str]) -> None:
        self._session = session
        self._names = names

    def send(self, step: int, steps: int, local: WindowPart, device: WindowPart) -> None:
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
        # the mean over ranks of a part times the number of ranks is the sum of the parts
        times = {name: 1 if name == "mfu" else self._session.world_size for name in mine}
        self._log(here, step=step)
        self._log(
            {name: value * times[name] for name, value in mine.items()},
            step=step,
            sync_dist=True,
            batch_size=1.0,
        )
        self._log(joules, step=step, sync_dist=True, batch_size=local.samples)

    def _rates(self, part: WindowPart) -> dict[str, float]:
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


class WindowPart(NamedTuple):
    """One rank's part of a window. A number that is not known is NaN.

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
    """How fast training was. A rate that is not known is None.

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
    rank, without evaluation. ``samples``, ``tokens``: their numbers. ``ranks``: their number.
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


def rates(parts: Sequence[WindowPart]) -> dict[str, float]:
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


def window(step: int, steps: int, parts: Sequence[WindowPart], device: WindowPart) -> Window:
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


NO_STEPS = Tally()


class EndedWindow(NamedTuple):
    """A window that is over, and whose time may not be known yet. ``number``: from 0."""

    number: int
    step: int
    tally: Tally
    spans: list[DeviceSpan]
    watts: float


class WindowMeter:
    """Ends a window after every ``every`` real steps, on all ranks at the same step.

    On an accelerator, a window is sent at the end of the next one: by then its time is known
    without waiting.
    """

    def __init__(
        self,
        session: Context,
        every: int,
        counts: Counts,
        flops: Flops | None,
        peak: Peak | None,
        sending: Sending | None,
    ) -> None:
        self._session = session
        self._every = every
        self._counts = counts
        self._flops = flops
        self._peak = peak
        self._sending = sending
        self._exchange = WindowExchange(session)
        self._before = NO_STEPS
        self._step = session.steps.count
        self._number = 0
        self._has_warned = False
        self._waiting: list[EndedWindow] = []
        self._sent: deque[tuple[EndedWindow, WindowPart, WindowPart]] = deque(maxlen=SLOTS)
        self._last: Window | None = None
        self.clock = DeviceStopwatch(session.device)
        self.power = Power()

    def stepped(self) -> None:
        """An optimizer has stepped."""
        step = self._counts.stepped()
        counts = self._flops is not None and not self._flops.is_done
        if not counts and (step % self._every or step == self._step):
            return
        now = self._counts.now
        if self._flops is not None and counts and self._flops.stepped(now):
            self.clock.lap()  # to count took long: the window restarts
            self.power.lap()
            self._before = now
        if step % self._every == 0 and step != self._step:
            self._step = step
            tally, self._before = now.since(self._before), now
            self._waiting.append(
                EndedWindow(self._number, step, tally, self.clock.lap(), self.power.lap())
            )
            self._number += 1
            if len(self._waiting) > self.clock.is_late:
                self._send(self._waiting.pop(0))

    def finish(self) -> None:
        """Send pending values and print the totals, after a loop without an error."""
        for one in self._waiting:
            one.spans[-1].wait() if one.spans else None
            self._send(one)
        self._waiting.clear()
        self.clock.stop()
        self._exchange.publish(END, _counted(self.clock.total_s, self._counts.now, local=True))

    def last(self) -> Window | None:
        """Return the last window that all ranks have reported, or None."""
        for ended, mine, device in reversed(self._sent):
            if self._last is not None and self._last.step == ended.step:
                break
            parts = self._exchange.parts(ended.number, mine)
            if parts is not None:
                self._last = window(ended.step, ended.tally.steps, parts, device)
                break
        return self._last

    def line(self) -> str:
        """Return a line about the whole session. Rank 0 calls it, when all ranks are through."""
        now = self._counts.now
        here = _counted(self.clock.total_s, now, local=True)
        whole = window(now.steps, now.steps, self._exchange.parts(END, here) or [here], here)
        facts = [f"{now.steps} steps in {whole.seconds:.1f} s"]
        if whole.samples is not None:
            facts.append(f"{whole.samples} samples, {whole.samples_per_sec or 0:.1f} per second")
        if whole.tokens is not None:
            facts.append(f"{whole.tokens} tokens, {whole.tokens_per_sec or 0:.1f} per second")
        return f"throughput: {'; '.join(facts)}"

    def _send(self, ended: EndedWindow) -> None:
        device, mine = WindowPart(), WindowPart()
        try:
            device, mine = self._part(ended, local=False), self._part(ended, local=True)
            if self._exchange.is_published(ended.number):
                self._exchange.publish(ended.number, mine)
                self._sent.append((ended, mine, device))
        except Exception as error:
            # NaN is sent then: ranks must all send the same names
            self._warn_once(error)
        if self._sending is not None:
            self._sending.send(ended.step, ended.tally.steps, mine, device)

    def _part(self, ended: EndedWindow, local: bool) -> WindowPart:
        seconds = sum(span.seconds for span in ended.spans)
        part = _counted(seconds, ended.tally, local)._replace(joules=ended.watts * seconds)
        if self._flops is None:
            return part
        operations = self._flops.of(ended.tally)
        peak = math.nan if self._peak is None else self._peak.of(self._flops.dtype)
        return part._replace(flops=operations, mfu=per(per(operations, seconds), peak))

    def _warn_once(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(f"throughput: a window could not be measured: {error!r}. Training continues")


def _counted(seconds: float, tally: Tally, local: bool) -> WindowPart:
    """``local``: without what another rank counts."""
    if not tally.batches:
        return WindowPart(seconds)
    samples = tally.local_samples if local else tally.samples
    tokens = tally.local_tokens if local else tally.tokens
    return WindowPart(seconds, samples, math.nan if tally.silent else tokens)
