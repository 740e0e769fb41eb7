"""Gathers what the loop logs, and sends it to the loggers at log points."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypedDict, get_args

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, UsageError, hookimpl

from torchbus_log.autolog import Autolog
from torchbus_log.exchange import (
    LoggedValue,
    NumberExchange,
    computed,
    lines,
    local_values,
    over_ranks,
)
from torchbus_log.monitors import Monitors
from torchbus_log.passes import LoggedPass, OpenPasses
from torchbus_log.totals import Metric, Value, check_step, copied, updates
from torchbus_log.trackers.values import Values, table_of

LOCAL_VALUES_WAITING_AT_MOST = 10_000
TABLE_AT_MOST, BINS = 1024, 64
_new = tuple.__new__  # half the time of LoggedValue(...), in a call that every step makes


class Gatherer:
    """Sends values at log points, which all ranks reach together.

    A log point comes every ``log_every_n_steps`` real steps, and at the end of each training pass.
    The last log point comes when the session has ended on all ranks. The end of an evaluation is
    not a log point, because rank 0 may evaluate alone: its values wait for the next log point.

    ``step`` is the number of real steps so far. Optimizers that step in turn make one step
    together. ``names`` are the names that the loop logs. ``monitored`` are the names that plugins
    judge. ``listens`` is True if there is a logger; otherwise only monitored values matter.
    ``shown`` gives the name that loggers get, without secrets.
    """

    hears_trials = False

    def __init__(
        self,
        session: Context,
        every: int,
        passes: OpenPasses,
        autolog: Autolog | None,
        monitored: Collection[str],
        listens: bool,
    ) -> None:
        self._session = session
        self._every = every
        self._autolog = autolog
        self._exchange = NumberExchange(session)
        self._monitors = Monitors(session, self._exchange, monitored) if monitored else None
        self._listens = listens
        self._steps = session.steps.follow()
        self._point = 0
        self._is_late = self._follows_training = False
        self._metrics: list[tuple[str, Metric, int]] = []
        self._on_bar: set[str] = set()  # names of metric objects
        self._logged_outside: list[tuple[Metric, object]] = []  # with their update counts
        self.shown = functools.cache(session.redactor.text)
        self.passes = passes
        self.waiting: list[LoggedValue] = []
        self.names: set[str] = set()
        self._latest: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.passes.epoch,
            "names": sorted(self.names),
            "latest": dict(self._latest),
            "judged": [] if self._monitors is None else self._monitors.found,
            "open": self.passes.open_totals(),
            "ranks": self._session.world_size,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.epoch = state["epoch"]
        self.names.update(state.get("names", ()))
        self._latest |= state.get("latest", {})
        if self._monitors is not None:
            self._monitors.resumed(state.get("judged", ()))
        if state.get("ranks") == self._session.world_size:
            self.passes.go_on(state["open"])

    # What the loop logs --------------------------------------------------------------------------

    def add(self, name: str, number: Value, how: How) -> None:
        """Gather a value for this step, for the end of the pass over this loader, or for both."""
        if self._monitors is not None:
            if self._monitors.logs(name, how.on_epoch):
                how = dataclasses.replace(how, sync_dist=True)
            elif not self._listens:
                return
        if how.on_epoch:
            self._add_to_pass(name, number, how)
        if how.in_step:
            self._add_record(f"{name}_step" if how.on_epoch else name, number, how)

    def _add_to_pass(self, name: str, number: Value, how: How) -> None:
        self.names.add(name)
        named = f"{name}_epoch" if how.on_step else name
        if self._monitors is not None:
            self._monitors.named(named, name)
            if how.sync_dist and self._follows_a_pass:
                self._monitors.refuse_second(named, self._steps.count)
                return self._add_record(named, number, how)
        total = self.passes.current.total(
            named, how.reduce, how.sync_dist is not False, how.prog_bar
        )
        total.add(number, self._samples(how))

    def _add_record(self, name: str, number: Value, how: How) -> None:
        samples = self._samples(how) if how.sync_dist else 1.0
        record = LoggedValue(
            name=name,
            step=self._steps.count if how.step is None else how.step,
            epoch=self.passes.epoch,
            parts=(number,),
            scale=samples if how.reduce == "mean" else 1.0,
            weight=samples,
            reduce=how.reduce,
            sync=how.sync_dist is True,
            prog_bar=how.prog_bar,
            may_lack=self.passes.current.divided_evaluation,
        )
        records = [record] if self._monitors is None else self._monitors.judged([record])
        self.waiting += records  # a listener to a monitored value may have sent the others

    def add_plainly(self, name: str, number: Value) -> None:
        """Gather a value for this step without options, in half the time."""
        if self._monitors is not None:
            return self.add(name, number, PLAINLY)
        step, epoch = self._steps.count, self.passes.epoch
        fields = (name, step, epoch, (number,), 1.0, 1.0, "mean", False, False, False)
        self.waiting.append(_new(LoggedValue, fields))

    @property
    def _follows_a_pass(self) -> bool:
        """Whether the loop is between passes over loaders that it trains on."""
        return self.passes.epoch is not None and self.passes.current is self.passes.outside

    def _samples(self, how: How) -> float:
        if how.reduce == "sum" and not self.passes.counts:
            return 0.0
        return self.passes.samples if how.batch_size is None else float(how.batch_size)

    def add_metric(self, name: str, metric: Metric, prog_bar: bool) -> None:
        """Compute and reset a metric object when the pass ends.

        Outside of a pass, compute it with its present values, and reset it when the next pass
        begins.
        """
        if prog_bar:
            self._on_bar.add(name)
        if self._monitors is not None:
            self._monitors.logs(name, True)
            self._monitors.named(name, name)
        if self.passes.current is self.passes.outside:
            self._logged_outside.append((metric, updates(metric)))
        if self.passes.current is self.passes.outside and self._monitors is not None:
            values = self._computed(name, metric, self._steps.count)
            records = self._monitors.judged(values)
            self.waiting += records
        elif self.passes.current is self.passes.outside:
            self._metrics.append((name, copied(metric), self._steps.count))
        else:
            self.passes.current.metrics[name] = metric

    def _computed(self, name: str, metric: Metric, step: int) -> list[LoggedValue]:
        """Compute a metric object on all ranks. Return the numbers, and send tables at once."""
        records, more = computed(name, metric, step, self.passes.epoch)
        records = [one._replace(prog_bar=name in self._on_bar) for one in records]
        shown = {self.shown(one): found for one, found in more.items()}
        for one, found in shown.items() if self._session.is_main else ():
            if found.numel() > TABLE_AT_MOST:
                self._session.bus.hook.histogram_ready(
                    name=one, values=Values(one, found, BINS), step=step, epoch=self.passes.epoch
                )
            else:
                self._session.bus.hook.table_ready(name=one, table=table_of(found), step=step)
        return records

    def logged(self) -> None:
        """Called when the loop has logged a value. Just after a log point, send local values."""
        if self._point == self._steps.count > 0 or len(self.waiting) > LOCAL_VALUES_WAITING_AT_MOST:
            self._send_local()

    @property
    def step(self) -> int:
        """The number of real steps so far."""
        return self._steps.count

    def latest(self, name: str) -> float:
        """Return the last value of a name, after a log point. All ranks must call this."""
        self.reach_point(automatic=False)
        if name not in self._latest:
            raise UsageError(
                f"s.logged({name!r}): there is no value of this name yet. Logged names:"
                f" {', '.join(sorted(self._latest)) or 'none'}"
            )
        return self._latest[name]

    @hookimpl
    def monitored_value(self, name: str, value: float) -> None:
        self._latest[name] = value

    # Where the loop is ---------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def batch_ready(self, batch: object, iterator: LoaderIterator) -> None:
        self.passes.record(batch, iterator)

    @hookimpl
    def loader_opened(self) -> None:
        """Called when a pass begins. The previous one is over, even if a wrapper had read ahead."""
        for metric, before in self._logged_outside:
            if updates(metric) == before:  # otherwise the loop still uses it, or has reset it
                metric.reset()
        self._logged_outside.clear()
        is_next_epoch = self._follows_training and torch.is_grad_enabled()
        if self._is_late or is_next_epoch:
            self.reach_point(automatic=self._is_late)
            self._is_late = self._follows_training = False
        self._close_left()

    @hookimpl(tryfirst=True)
    def batch_wanted(self) -> None:
        self._close_left()

    def _close_left(self) -> None:
        """End the passes that the loop has left, before it makes another step."""
        for one in self.passes.left():
            self._close(one)

    @hookimpl
    def after_backward(self) -> None:
        self._close_left()
        self.passes.trained()
        if self._monitors is not None:
            self._monitors.training(self.passes.epoch, self._steps.count)

    @hookimpl(trylast=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        if self._autolog is not None:
            self._autolog.stepped(optimizer)
        if self._steps.count % self._every == 0 and self._steps.count > self._point:
            self.reach_point()

    @hookimpl(trylast=True)
    def loader_end(self, loader: DataLoader[object], order: object) -> None:
        has_begun = self.passes.has(loader)
        ended = self.passes.end(loader)
        self._is_late |= ended is None and self.passes.current.trains
        if not has_begun and order is not None and self._monitors is not None:
            self._monitors.judged([], divided=True)  # other ranks do have batches
        if ended is not None:
            self._close(ended)
            if self._monitors is not None and not ended.trains:
                self._monitors.evaluation(self.passes.epoch, self._steps.count)
            if ended.trains:
                self.reach_point()
                self._follows_training = True
                if self._autolog is not None:
                    self._autolog.pause()

    @hookimpl(optionalhook=True)
    def last_batch_used(self, iterator: LoaderIterator) -> None:
        self.loader_end(iterator.loader, iterator.order)

    # Log points ----------------------------------------------------------------------------------

    def reach_point(self, automatic: bool = True) -> None:
        """Send everything, with or without the automatic values. All ranks must call this."""
        if self._autolog is not None and automatic:
            self.names.update([record.name for record in self.waiting])
            records = self._autolog.records(self.names)
            if self._monitors is not None:
                self._monitors.also_written([record.name for record in records])
                records = self._monitors.judged(records, automatic=True)
            self.waiting += records
        for one in [*self.passes.left(), self.passes.outside]:
            self._close(one)
        ready, self.waiting = self.waiting, []
        metrics, self._metrics = self._metrics, []
        self._point = self._steps.count
        if not self._listens:
            return
        values = over_ranks(self._exchange, self._steps.count, ready, metrics)
        for name, metric, step in metrics:
            more = self._computed(name, metric, step)
            ready += more
            values += local_values(more)
        self._send(ready, values)

    def end(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Send everything at the end of the session.

        If a rank has failed, each rank sends only its local values.
        """
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.reach_point()
            if error is None and self._monitors is not None:
                self._monitors.end()
        else:
            self._send_local()

    def _send_local(self) -> None:
        """Send the values that are not reduced over ranks."""
        ready = [
            record for record in self.waiting if not record.sync or self._session.world_size == 1
        ]
        self.names.update([record.name for record in ready])
        if ready:
            self.waiting = [
                record for record in self.waiting if record.sync and self._session.world_size > 1
            ]
            self._send(ready, local_values(ready))

    def _send(self, ready: list[LoggedValue], values: list[float]) -> None:
        for line in lines(ready, values):
            self._latest |= line.metrics
            self._session.bus.hook.metrics_ready(
                metrics={self.shown(name): value for name, value in line.metrics.items()},
                step=line.step,
                epoch=line.epoch,
                prog_bar=frozenset(map(self.shown, line.prog_bar)),
            )

    def _close(self, one: LoggedPass) -> None:
        """Turn the values of a pass into records."""
        records = [
            LoggedValue(
                name,
                self._steps.count,
                self.passes.epoch,
                total.parts(),
                1.0,
                total.weight,
                reduce,
                sync,
                prog_bar,
                one.divided_evaluation,
            )
            for (name, reduce, sync, prog_bar), total in one.totals.items()
        ]
        if self._monitors is None:
            self._metrics += [
                (name, copied(metric), self._steps.count) for name, metric in one.metrics.items()
            ]
        else:
            for name, metric in one.metrics.items():
                records += self._computed(name, metric, self._steps.count)
            records = self._monitors.judged(records, divided=one.divided_evaluation)
        self.waiting += records
        for metric in one.metrics.values():
            metric.reset()
        one.totals.clear()
        one.metrics.clear()


Reduction = Literal["mean", "sum", "max", "min"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)


class LogOptions(TypedDict, total=False):
    """The keyword arguments of ``s.log``."""

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
ELSEWHERE = {
    "add_dataloader_idx": "leave it out, and give the values of each loader another name",
    "enable_graph": "leave it out: values are detached",
    "logger": "leave it out: print a value that no logger should get",
    "metric_attribute": "leave it out: pass the metric itself as the value",
    "rank_zero_only": "leave it out: a value without sync_dist or on_epoch is rank 0's",
    "reduce_fx": "here it is called reduce=",
    "sync_dist_group": "leave it out: sync_dist=True reduces over all ranks",
}
"""Arguments of Lightning's ``self.log``, and what to write instead."""
PLAINLY = How()


def how(options: dict[str, Any]) -> How:
    """Return the options. Raises UsageError for an unknown option or reduction."""
    if not options.keys() <= OPTIONS:
        unknown = sorted(options.keys() - OPTIONS)
        remedy = ELSEWHERE.get(unknown[0], f"there are {', '.join(sorted(OPTIONS))}")
        raise UsageError(f"s.log has no option {unknown[0]!r}: {remedy}")
    found = How(**options)
    if found.reduce not in REDUCTIONS:
        raise UsageError(f"reduce={found.reduce!r} is unknown: use one of {', '.join(REDUCTIONS)}")
    check_step(found.step)
    samples = found.batch_size
    if samples is not None and not (isinstance(samples, Real) and 0 <= samples < math.inf):
        raise UsageError(f"s.log(..., batch_size={samples!r}): it must be a number of samples")
    return found
