"""Computes the rates of each window from counts and times."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from torchbus.plugin import Context, warn

from torchbus_throughput.measures.clock import Clock, Power, Span
from torchbus_throughput.measures.counts import Counts, Tally
from torchbus_throughput.measures.flops import Flops
from torchbus_throughput.measures.peaks import Peak
from torchbus_throughput.windows import END, SLOTS, Exchange, Part, Sending, Window, per, window

NO_STEPS = Tally()


class Ended(NamedTuple):
    """A window that is over, and whose time may not be known yet. ``number``: from 0."""

    number: int
    step: int
    tally: Tally
    spans: list[Span]
    watts: float


class Meter:
    """Ends a window after every so many real steps, on all ranks at the same step.

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
        self._exchange = Exchange(session)
        self._before = NO_STEPS
        self._step = session.steps.count
        self._number = 0
        self._has_warned = False
        self._waiting: list[Ended] = []
        self._sent: deque[tuple[Ended, Part, Part]] = deque(maxlen=SLOTS)
        self._last: Window | None = None
        self.clock = Clock(session.device)
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
                Ended(self._number, step, tally, self.clock.lap(), self.power.lap())
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

    def _send(self, ended: Ended) -> None:
        device, mine = Part(), Part()
        try:
            device, mine = self._part(ended, local=False), self._part(ended, local=True)
            if self._exchange.is_published(ended.number):
                self._exchange.publish(ended.number, mine)
                self._sent.append((ended, mine, device))
        except Exception as error:
            # what is sent is NaN then: ranks that send different names would differ
            self._warn_once(error)
        if self._sending is not None:
            self._sending.send(ended.step, ended.tally.steps, mine, device)

    def _part(self, ended: Ended, local: bool) -> Part:
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


def _counted(seconds: float, tally: Tally, local: bool) -> Part:
    """``local``: without what another rank counts."""
    if not tally.batches:
        return Part(seconds)
    samples = tally.local_samples if local else tally.samples
    tokens = tally.local_tokens if local else tally.tokens
    return Part(seconds, samples, math.nan if tally.silent else tokens)
