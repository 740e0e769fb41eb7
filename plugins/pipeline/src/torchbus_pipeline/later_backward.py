"""Runs the loop's backward from a lazy loss, which has not been computed yet."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor
from torchbus.plugin import warn
from torchbus.tree import leaves

from torchbus_pipeline._compat import Order, interleaved_order
from torchbus_pipeline.cut import Cut
from torchbus_pipeline.divergence import PipelineRanks
from torchbus_pipeline.later import (
    OF_A_PART,
    Later,
    LossReplay,
    agree,
    bounds_of,
    kind_of,
    number,
    path_of,
    total_of,
    weights_of,
)
from torchbus_pipeline.passes import ForwardPass
from torchbus_strategy.backward import engine as strategy_engine
from torchbus_strategy.loss.gradients import isolated_gradients


def batch_of(loss: Later) -> str:
    """Describe the batch by a checksum of the input and of the other operands of the loss.

    Tensors that require gradients are left out, because they come from the model.
    """
    source = loss.source
    assert isinstance(source, Deferred)
    nodes = [later.node for later in path_of(loss) if later.node is not None]
    used = [leaf for node in nodes for leaf in leaves((node.args, node.kwargs))]
    numbers = [
        float(one.detach().double().sum())
        for one in [source.one.run.inputs.x, *used]
        if isinstance(one, Tensor) and not isinstance(one, Later) and not one.requires_grad
    ]
    return f"a batch with the checksum {crc32(struct.pack(f'{len(numbers)}d', *numbers)):08x}"


Compute = Callable[[ForwardPass], Tensor]


class Deferred:
    """A deferred output. ``compute`` runs a whole pass forward, and ``again`` makes a new pass.

    After the backward, the weights may change. So the last place stores the values of all operands
    of the loss.
    """

    def __init__(
        self, again: Callable[[], ForwardPass], compute: Compute, sync: Callable[[str], None]
    ) -> None:
        self._again, self._compute, self._sync = again, compute, sync
        self.one = again()
        self.device = self.one.run.inputs.x.device
        self.output: Tensor | None = None
        self._path: set[int] = set()
        self._values: dict[int, Tensor] = {}

    def numbers(self) -> Tensor:
        """Compute the output now, as a whole, with its graph. All ranks must call this."""
        if self.output is None:
            with torch.enable_grad():
                self.output = self._compute(self.one)
        return self.output

    def value_of(self, later: Later) -> Tensor | None:
        """Return the value of an operand of the loss after the backward, or else None.

        All ranks must call this.
        """
        if id(later) not in self._path:
            return None
        run = self.one.run
        self._sync(f"an output of {run.cut.name}, which the loop reads after backward")
        last = run.cut.place_of(run.cut.stages - 1)
        return self.one.link.spread(self._values.get(id(later)), last)

    def finished(self, replay: LossReplay) -> None:
        """Called when the backward has run. On the last place, store the operands' values."""
        self._path = {id(later) for later in replay.path}
        self._values = {key: value.detach() for key, value in replay.values.items()}

    def start_again(self) -> None:
        """Replace the pass with a new one, which can be computed as a whole."""
        self.one = self._again()


class LazyResult(NamedTuple):
    """The result of a pass. ``loss`` is the loss of the whole batch, or None after an error.

    ``holds`` is True if the loss is the mean or sum of the micro-batches' losses.
    """

    loss: Tensor | None
    holds: bool


class OnePass:
    """Runs one pass in a given order.

    ``kind`` says whether the loss is a "mean" or a "sum". ``seed`` is the gradient of the loss.
    """

    def __init__(
        self, one: ForwardPass, order: Order, replay: LossReplay, kind: str, seed: Tensor
    ) -> None:
        self._one, self._run, self._order, self._replay = one, one.run, order, replay
        self._rows, self._last = len(one.run.inputs.x), one.run.cut.stages - 1
        self._bounds = bounds_of(self._rows, one.run.count)
        self._weights = weights_of(kind, self._rows, one.run.count)
        self._kind, self._seed = kind, seed
        self._losses: dict[int, Tensor] = {}
        self._loss_values: dict[int, Tensor] = {}
        self._takes_no_part = False

    def run(self) -> LazyResult:
        """Run all micro-batches forward and backward. All ranks of the pipeline must call this."""
        with self._one.stream.drawn_from(), torch.enable_grad():
            for kind, stage, index in self._order:
                if kind == "F":
                    self._forward(stage, index)
                else:
                    root = self._losses.pop(index, None) if stage == self._last else None
                    self._run.backward(stage, index, retain=False, root=root)
        self._run.finish()
        return self._outcome()

    def _forward(self, stage: int, index: int) -> None:
        made = self._run.forward(stage, index)
        if stage != self._last or made is None:
            return
        try:
            loss = self._replay.loss_of(made, *self._bounds[index])
        except OF_A_PART:
            self._takes_no_part = True
            return
        except Exception as error:
            self._run.error = self._run.error or error
            return
        self._loss_values[index] = loss.detach()
        self._losses[index] = loss * (self._weights[index] * self._seed)

    def _outcome(self) -> LazyResult:
        """Broadcast the last place's results to all ranks."""
        count, reported = self._run.count, None
        if len(self._loss_values) == count:
            parts = [part for _, part in sorted(self._run.outputs.items()) if part is not None]
            output = torch.cat(parts)
            with torch.no_grad():
                loss = self._replay.loss_of(output, 0, self._rows)
            total = total_of(
                [one for _, one in sorted(self._loss_values.items())], self._kind, self._rows
            )
            reported = torch.stack([loss, torch.full_like(loss, float(agree(total, loss)))])
        elif self._takes_no_part and self._run.error is None:
            reported = torch.tensor([torch.nan, 0.0], device=self._seed.device)
        self._run.outputs.clear()
        spread = self._spread(reported)
        if spread is None:
            return LazyResult(None, True)
        return LazyResult(spread[0].clone(), bool(spread[1]))

    def outside(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors outside the stages that the pass has reached, with their gradients.

        All ranks must call this, and get the same result.
        """
        x, gradients = self._run.inputs.x, [self._spread(one.grad) for one in self._replay.inner]
        pairs = list(zip(self._replay.outside, gradients, strict=True))
        if x.requires_grad:
            pairs.insert(0, (x, self._one.input_gradient()))
        retained = [(one, gradient) for one, gradient in pairs if gradient is not None]
        return [one for one, _ in retained], [gradient for _, gradient in retained]

    def _spread(self, tensor: Tensor | None) -> Tensor | None:
        return self._one.link.spread(tensor, self._run.cut.place_of(self._last))


NEITHER = (
    "strategy='pipeline', schedule={!r}: the loss of {} is neither a mean nor a sum over samples,"
    " so it can't be computed for each micro-batch. Training continues with schedule='gpipe', which"
    " is exact and stores the activations of all micro-batches; pass it to avoid this warning"
)


class LaterBackward:
    """Classifies the loss in step 1 as a mean or a sum over samples, and then runs 1F1B.

    Once the loss of a step is neither, this and all later steps use GPipe.
    """

    def __init__(self, schedule: str, orders: Orders, speaks: bool) -> None:
        self._schedule, self._orders, self._speaks = schedule, orders, speaks

    def run(
        self,
        loss: Later,
        seed: Tensor | None,
        engine: strategy_engine.BackwardFunction,
        retain: bool | None,
        holders: list[Tensor],
    ) -> None:
        """Run the backward of a lazy loss.

        ``seed`` is the gradient of the loss, where None stands for 1. ``holders`` are the
        parameters that this rank trains.
        """
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
        engine: strategy_engine.BackwardFunction,
        retain: bool | None,
    ) -> None:
        """Run GPipe. In step 1, also classify the loss."""
        made, cut = number(loss), source.one.run.cut
        if cut.loss_kind is None and source.output is not None:
            replay = LossReplay(loss, len(source.output))
            self._learn(cut, kind_of(replay, source.output, source.one.run.count))
        engine([made], [seed], retain, False)

    def _in_turns(
        self,
        loss: Later,
        source: Deferred,
        order: list[tuple[str, int, int]],
        seed: Tensor | None,
        engine: strategy_engine.BackwardFunction,
    ) -> bool:
        """Run 1F1B. Returns False if the loss is not a mean or sum over samples in this step."""
        one = source.one
        one.begin_backward(one.run)
        assert one.run.cut.loss_kind is not None
        start = torch.ones((), dtype=loss.dtype, device=source.device) if seed is None else seed
        replay = LossReplay(loss, len(one.run.inputs.x))
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
    """The order of this rank's forwards and backwards in a pass.

    With one stage on each rank this is the order of torch's ``Schedule1F1B``, and otherwise of
    torch's ``ScheduleInterleaved1F1B``.
    """

    def __init__(self, team: PipelineRanks) -> None:
        self._team = team
        self._known: dict[tuple[int, int], Order] = {}

    def of(self, cut: Cut, count: int) -> Order | None:
        """Return the actions, or None if the batch is too small for the schedule."""
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
