"""The loop's backward from a loss that is computed later."""

from __future__ import annotations

import torch
from torch import Tensor
from torchbus.plugin import warn

from torchbus_pipeline._compat import Order, interleaved_order
from torchbus_pipeline.lazily.deferred import Deferred
from torchbus_pipeline.lazily.later import Later, number
from torchbus_pipeline.lazily.one_pass import OnePass
from torchbus_pipeline.lazily.replay import Replay, kind_of
from torchbus_pipeline.meeting import Team
from torchbus_pipeline.model.cut import Cut
from torchbus_strategy.backward import engine as strategy_engine
from torchbus_strategy.loss.gradients import isolated_gradients

NEITHER = (
    "strategy='pipeline', schedule={!r}: the loss of {} is neither a mean nor a sum over samples,"
    " so that micro-batches can't have separate losses: it is trained by schedule='gpipe'. That"
    " is exact, and stores the activations of all micro-batches"
)


class LaterBackward:
    """Classifies the loss in step 1 as a mean or a sum over samples; then runs 1F1B.

    A loss that is neither, in a later step too, is trained by GPipe from then on.
    """

    def __init__(self, schedule: str, orders: Orders, speaks: bool) -> None:
        self._schedule, self._orders, self._speaks = schedule, orders, speaks

    def run(
        self,
        loss: Later,
        seed: Tensor | None,
        engine: strategy_engine.Engine,
        retain: bool | None,
        holders: list[Tensor],
    ) -> None:
        """``seed``: the gradient of the loss, None for 1. ``holders``: this rank's parameters."""
        source = loss.source
        assert isinstance(source, Deferred)
        run = source.one.run
        order = self._orders.of(run.cut, run.count)
        if source.output is None and (retain or order is None or loss.dim()):
            source.numbers()
        if source.output is None and order is not None:
            with isolated_gradients(holders):
                if self._in_turns(loss, source, order, seed, engine):
                    return
                for one in holders:
                    one.grad = None
                self._whole(loss, source, seed, engine, retain)
        else:
            self._whole(loss, source, seed, engine, retain)

    def _whole(
        self,
        loss: Later,
        source: Deferred,
        seed: Tensor | None,
        engine: strategy_engine.Engine,
        retain: bool | None,
    ) -> None:
        """Run GPipe. In step 1 the loss is classified."""
        made, cut = number(loss), source.one.run.cut
        if cut.loss_kind is None and source.output is not None:
            replay = Replay(loss, len(source.output))
            self._learn(cut, kind_of(replay, source.output, source.one.run.count))
        engine([made], [seed], retain, False)

    def _in_turns(
        self,
        loss: Later,
        source: Deferred,
        order: list[tuple[str, int, int]],
        seed: Tensor | None,
        engine: strategy_engine.Engine,
    ) -> bool:
        """Run 1F1B. Returns False if the loss is not a mean or sum over samples this time."""
        one = source.one
        one.begin_backward(one.run)
        assert one.run.cut.loss_kind is not None
        start = torch.ones((), dtype=loss.dtype, device=source.device) if seed is None else seed
        replay = Replay(loss, len(one.run.inputs.x))
        turns = OnePass(one, order, replay, one.run.cut.loss_kind, start)
        outcome = turns.run()
        if outcome.loss is not None and not outcome.holds:
            self._learn(one.run.cut, "")
            source.start_again()
            return False
        roots, gradients = turns.outside() if outcome.loss is not None else ([], [])
        if roots:
            engine(roots, gradients, None, False)
        source.finished(replay)
        loss.value = outcome.loss
        return True

    def _learn(self, cut: Cut, kind: str | None) -> None:
        cut.loss_kind = kind or ""
        if not kind and self._speaks:
            warn(NEITHER.format(self._schedule, cut.name))


class Orders:
    """This rank's actions, in order.

    With one stage on each rank it is the order of torch's ``Schedule1F1B``, else torch's
    ``ScheduleInterleaved1F1B``.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._known: dict[tuple[int, int], Order] = {}

    def of(self, cut: Cut, count: int) -> Order | None:
        """Return the actions; None if the schedule needs more micro-batches (a small batch)."""
        if count < cut.stages or count % max(1, count // cut.places):
            return None
        key = (cut.stages, count)
        if key not in self._known:
            self._known[key] = (
                one_forward_one_backward(cut.local_stages[0], cut.stages, count)
                if cut.stages == cut.places
                else interleaved_order(cut.local_stages, cut.stages, count, self._team.group)
            )
        return self._known[key]


def one_forward_one_backward(stage: int, stages: int, count: int) -> Order:
    """Return the order of torch's ``Schedule1F1B``.

    >>> [f"{kind}{index}" for kind, _, index in one_forward_one_backward(0, 2, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    ahead = min(count, stages - stage)
    order: Order = [("F", stage, index) for index in range(ahead)]
    for index in range(count):
        order.append(("B", stage, index))
        if index + ahead < count:
            order.append(("F", stage, index + ahead))
    return order
