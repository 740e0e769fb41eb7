"""Measures throughput every ``throughput_every`` steps, and returns it by ``s.throughput``."""

from __future__ import annotations

import math
import threading

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, UsageError, expect, hookimpl, needs

from torchbus_throughput.clock import TimeMark
from torchbus_throughput.counts import Counts, Tokens
from torchbus_throughput.flops import Flops, Peak
from torchbus_throughput.meter import Sending, Window, WindowMeter


@needs("flops", "peak_flops")
class Throughput:
    """Measures samples, steps, tokens and FLOPs per second of training, on each device and in all.

    Nothing waits for a device, and ranks do not wait for each other. Batches of evaluation don't
    count, and neither does the time that they take.

    Args:
        throughput_every: real optimizer steps in a window. The rates of each are logged.
        tokens: where a batch shows its number of tokens: a key, an attribute or an index, of a
            tensor that has one element for each token, or of an int; or a function from the batch
            to an int.
        flops: True counts the floating-point operations of one step, after the first. A number is
            that of one sample, forward and backward.
        peak_flops: floating-point operations per second of one device at its peak, for ``mfu``; by
            default from a table of data sheets.

    Source: names as in Lightning's ThroughputMonitor; MFU: Chowdhery et al.,
    https://arxiv.org/abs/2204.02311, appendix B
    """

    owns = ("throughput",)
    verbs = ("throughput",)
    tried_with = ({"throughput_every": 1},)

    def __init__(
        self,
        *,
        throughput_every: int = 50,
        tokens: Tokens | None = None,
        flops: bool | float | None = False,
        peak_flops: float | None = None,
    ) -> None:
        check(throughput_every, tokens, flops, peak_flops)
        self._every = throughput_every
        self._tokens = tokens
        self._wants_flops = flops
        self._peak_flops = peak_flops
        self._flops = Flops(None if flops is True else float(flops)) if flops else None
        self._before_pass: TimeMark | None = None

    # Events --------------------------------------------------------------------------------------

    @hookimpl(trylast=True)  # the process group is open
    def session_start(self, session: Context) -> None:
        """Start. With ``flops``, ranks exchange whether they know their devices' peaks."""
        self._session = session
        self._thread = threading.get_ident()
        self._counts = Counts(session, self._tokens)
        peak = (
            Peak(session, self._peak_flops, self._wants_flops is True)
            if self._flops is not None and not session.is_inside
            else None
        )
        names = ["samples_per_sec"]
        names += ["tokens_per_sec"] if self._tokens is not None else []
        names += ["flops_per_sec"] if self._flops is not None else []
        names += ["mfu"] if peak is not None and peak.is_known else []
        names += ["joules_per_sample"] if _measures_power(session) else []
        # a rank that only the verb has started sends nothing: a log point is a collective
        sending = None if session.is_inside else Sending(session, names)
        self._meter = WindowMeter(session, self._every, self._counts, self._flops, peak, sending)
        session.bus.register(self._meter.power, "throughput.power")
        session.on_close.push(self._close)

    @hookimpl
    def loader_start(self, loader: DataLoader[object]) -> None:
        if self._is_here:
            self._pause_flops()
            self._before_pass = self._meter.clock.mark() if self._meter.clock.runs else None

    @hookimpl(trylast=True)
    def batch_ready(self, batch: object, iterator: LoaderIterator) -> None:
        evaluates = bool(iterator.origin.evaluates) or not torch.is_grad_enabled()
        if not evaluates:
            self._counts.record(batch, iterator)
        if not self._is_here:
            return
        if evaluates:
            self._meter.clock.stop(self._before_pass)
        else:
            self._go_on()

    @hookimpl
    def before_backward(self) -> None:
        self._counts.count_batches()
        if not self._meter.clock.runs:
            self._go_on()

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._meter.stepped()

    @hookimpl
    def loader_end(self, loader: DataLoader[object]) -> None:
        if self._is_here:
            self._pause_flops()
            self._meter.clock.stop()

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        self._pause_flops()
        if error is None:
            self._meter.finish()

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        parts = [f"every {self._every} real steps"]
        parts += [f"tokens by {self._tokens!r}"] if self._tokens is not None else []
        parts += [self._flops.described()] if self._flops is not None else []
        return {"throughput": ["; ".join(parts)]}

    # Verb ----------------------------------------------------------------------------------------

    def throughput(self) -> Window | None:
        """Return the rates of the last window of ``throughput_every`` steps, of all ranks together.

        It is None before the end of the first one. Any rank may call it, whatever others do. On an
        accelerator it is the last window but one, whose time is known.
        """
        return self._meter.last()

    # Inside --------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        self._meter.clock.start()
        if self._flops is not None and not self._flops.is_done:
            self._flops.go_on(self._counts.now)

    def _pause_flops(self) -> None:
        if self._flops is not None:
            self._flops.pause()

    @property
    def _is_here(self) -> bool:
        """Whether this is the loop's thread. A wrapper may read a loader in another one."""
        return threading.get_ident() == self._thread

    def _close(self, kind: object, error: BaseException | None, trace: object) -> None:
        bus = self._session.bus
        is_logged = bus.has_listeners("metrics_ready") and bus.has_listeners("log_metrics")
        if error is None and not is_logged and self._counts.now.steps and self._session.is_main:
            print(self._meter.line())


def _measures_power(session: Context) -> bool:
    """Whether a monitor may measure power: on all ranks, or on the only one."""
    monitors = [one for _, one in session.bus.plugins() if "monitor" in getattr(one, "owns", ())]
    return bool(monitors) and (session.world_size == 1 or session.device.type == "cuda")


def check(
    throughput_every: int,
    tokens: Tokens | None,
    flops: bool | float | None,
    peak_flops: float | None,
) -> None:
    """Raise UsageError if an option has a wrong type or value."""
    expect("throughput_every", throughput_every, int, "a number of optimizer steps")
    if throughput_every < 1:
        raise UsageError(f"throughput_every={throughput_every}: it must be 1 or more steps")
    if isinstance(tokens, bool) or not (
        tokens is None or isinstance(tokens, str | int) or callable(tokens)
    ):
        raise UsageError(
            f"tokens={tokens!r}: it must be a key, an attribute or an index of the batch, or a"
            " function from the batch to an int"
        )
    kinds = (bool, int, float, type(None))
    expect("flops", flops, kinds, "True, False, or a number of FLOPs per sample")
    if flops is not None and not isinstance(flops, bool) and not 0 < flops < math.inf:
        raise UsageError(f"flops={flops}: FLOPs per sample must be more than 0")
    expect("peak_flops", peak_flops, (int, float, type(None)), "FLOPs per second of one device")
    if peak_flops is not None and not 0 < peak_flops < math.inf:
        raise UsageError(
            f"peak_flops={peak_flops}: FLOPs per second of one device must be more than 0, such as"
            " 989e12"
        )
