"""Gathers what is logged, and brings it to the host at log points."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, hookimpl

from torchbus_log.autolog import Autolog
from torchbus_log.metrics.exchange import Exchange, Key
from torchbus_log.metrics.how import How
from torchbus_log.metrics.records import Record, lines, merged, numbers_of
from torchbus_log.metrics.rounds import Rounds
from torchbus_log.metrics.values import Metric, Value, kept
from torchbus_log.passes import LoaderPass, Passes

LOCAL_VALUES_WAITING_AT_MOST = 10_000
_new = tuple.__new__  # half the time of Record(...), in a call that comes in every step


class Gatherer:
    """A log point is where all ranks are sure to be together: after every so many real optimizer steps, at the end of a
    pass over a loader that feeds backwards, and once the session has ended everywhere. The end of an evaluation is none,
    for rank 0 may do it alone: what it gathers waits for the next point.

    ``steps`` is the number of real steps so far: optimizers that step in turn make one together (see ``Rounds``); ``names`` are those that the
    loop logs itself.
    """

    def __init__(self, session: Context, every: int, passes: Passes, autolog: Autolog | None) -> None:
        self._session = session
        self._every = every
        self._autolog = autolog
        self._exchange = Exchange(session)
        self._rounds = Rounds()
        self._point = 0
        self._is_late = False
        self._metrics: list[tuple[str, Metric, int]] = []
        self.passes = passes
        self.steps = 0
        self.waiting: list[Record] = []
        self.names: set[str] = set()

    # What the loop logs ----------------------------------------------------------------------------------------

    def add(self, name: str, number: Value, how: How) -> None:
        """Gather a value for this step, or until the pass over the current loader ends, or both."""
        passes = self.passes
        if how.on_epoch:
            self.names.add(name)
            total = passes.current.total(f"{name}_epoch" if how.on_step else name, how.reduce, how.sync_dist is not False, how.prog_bar)
            total.add(number, self._samples(how))
        if how.in_step:
            samples = self._samples(how) if how.sync_dist else 1.0
            scale = samples if how.reduce == "mean" else 1.0
            named, step = f"{name}_step" if how.on_epoch else name, self.steps if how.step is None else how.step
            lack = passes.current.divided_evaluation
            self.waiting.append(
                Record(named, step, passes.epoch, (number,), scale, samples, how.reduce, how.sync_dist is True, how.prog_bar, lack)
            )  # fmt: skip

    def add_plainly(self, name: str, number: Value) -> None:
        """The same for this step, where no option is given: in half the time."""
        self.waiting.append(_new(Record, (name, self.steps, self.passes.epoch, (number,), 1.0, 1.0, "mean", False, False, False)))

    def _samples(self, how: How) -> float:
        if how.reduce == "sum" and not self.passes.counts:
            return 0.0
        return self.passes.samples if how.batch_size is None else float(how.batch_size)

    def add_metric(self, name: str, metric: Metric) -> None:
        """Compute a metric object when the pass ends; outside of one, what it holds now."""
        if self.passes.current is self.passes.outside:
            self._metrics.append((name, copy.deepcopy(metric), self.steps))
        else:
            self.passes.current.metrics[name] = metric

    def logged(self) -> None:
        """The loop has logged something. Just after a log point, local values follow it at once."""
        if self._point == self.steps > 0 or len(self.waiting) > LOCAL_VALUES_WAITING_AT_MOST:
            self._tell_local()

    # Where the loop is -----------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def batch_ready(self, batch: Any, iterator: LoaderIterator) -> None:
        self.passes.took(batch, iterator)

    @hookimpl
    def loader_opened(self) -> None:
        """A pass that a wrapper has exhausted before the loop used its last batches is over by now."""
        if self._is_late:
            self._is_late = False
            self.reach_point()

    @hookimpl
    def after_backward(self) -> None:
        self.passes.trained()

    @hookimpl(trylast=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self.steps += self._rounds.begins(optimizer)
        if self._autolog is not None:
            self._autolog.stepped(optimizer, self.steps)
        if self.steps % self._every == 0 and self.steps > self._point:
            self.reach_point()

    @hookimpl(trylast=True)
    def loader_end(self, loader: DataLoader[Any]) -> None:
        ended = self.passes.end(loader)
        self._is_late |= ended is None and self.passes.current.trains
        if ended is not None:
            self._close(ended)
            if ended.trains:
                self.reach_point()
                if self._autolog is not None:
                    self._autolog.pause()

    # Log points ------------------------------------------------------------------------------------------------

    def reach_point(self) -> None:
        """Tell everything. All ranks call it."""
        if self._autolog is not None:
            self.names.update([record.name for record in self.waiting])
            self.waiting += self._autolog.records(self.names)
        for one in [*self.passes.left(), self.passes.outside]:
            self._close(one)
        ready, self.waiting = self.waiting, []
        metrics, self._metrics = self._metrics, []
        self._point = self.steps
        values = self._over_ranks(ready, metrics)
        for name, metric, step in metrics:
            computed = self._computed(name, metric, step)
            ready += computed
            values += [merged("sum", [pair]) for pair in numbers_of(computed)]
        self._tell(ready, values)

    def end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The ranks have met at the end of the session; or one has failed, and each tells what it knows by itself."""
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.reach_point()
        else:
            self._tell_local()

    def _over_ranks(self, ready: list[Record], metrics: list[tuple[str, Metric, int]]) -> list[float]:
        """The value of each record: reduced over ranks, or this rank's."""
        mine = numbers_of(ready)
        shared = [index for index, record in enumerate(ready) if record.sync]
        keys = [Key(ready[index].name, ready[index].reduce, ready[index].step, ready[index].may_lack) for index in shared]
        keys += [Key(name, "metric", step) for name, _, step in metrics]
        rows = self._exchange.rows(self.steps, keys, [number for index in shared for number in mine[index]])
        values = [merged(record.reduce, [pair]) for record, pair in zip(ready, mine, strict=True)]
        for place, index in enumerate(shared):
            values[index] = merged(ready[index].reduce, [(row[2 * place], row[2 * place + 1]) for row in rows])
        return values

    def _tell_local(self) -> None:
        """Tell what no other rank has a part in."""
        ready = [record for record in self.waiting if not record.sync or self._session.world_size == 1]
        self.names.update([record.name for record in ready])
        if ready:
            self.waiting = [record for record in self.waiting if record.sync and self._session.world_size > 1]
            self._tell(ready, [merged(record.reduce, [pair]) for record, pair in zip(ready, numbers_of(ready), strict=True)])

    def _tell(self, ready: list[Record], values: list[float]) -> None:
        for line in lines(ready, values):
            self._session.bus.hook.metrics_ready(
                metrics=line.metrics, step=line.step, epoch=line.epoch, prog_bar=frozenset(line.prog_bar)
            )  # fmt: skip

    def _close(self, one: LoaderPass) -> None:
        """Turn what a pass has gathered into records."""
        for (name, reduce, sync, prog_bar), total in one.totals.items():
            self.waiting.append(
                Record(name, self.steps, self.passes.epoch, total.parts(), 1.0, total.weight, reduce, sync, prog_bar, one.divided_evaluation)
            )
        self._metrics += [(name, copy.deepcopy(metric), self.steps) for name, metric in one.metrics.items()]
        for metric in one.metrics.values():
            metric.reset()
        one.totals.clear()
        one.metrics.clear()

    def _computed(self, name: str, metric: Metric, step: int) -> list[Record]:
        """The values of a metric object, which reduces itself over ranks."""
        value = metric.compute()
        named = value if isinstance(value, Mapping) else {name: value}
        return [
            Record(one, step, self.passes.epoch, (kept(one, number),), 1.0, 1.0, "sum", False, False) for one, number in named.items()
        ]  # fmt: skip
