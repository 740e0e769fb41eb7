"""GPipe: all forwards in the loop's forward, all backwards in the loop's backward.

The output is there at once, on all ranks, so that the loop may do anything with it.

Source: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism,
NeurIPS 2019."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchbus.plugin import Context

from torchbus_pipeline.schedule.run import Link, Run
from torchbus_strategy import random_streams


def forward(one: Pass) -> Tensor | None:
    """Return the whole output on all ranks; None on all if a layer has failed on some rank."""
    run, ours = one.run, one.run.cut.local_stages
    with one.stream.drawn_from():
        for stage in ours:
            for index in range(run.count):
                run.forward(stage, index)
    last = run.cut.place_of(run.cut.stages - 1)
    parts = [run.outputs.pop(index) for index in range(run.count) if index in run.outputs]
    here = [part for part in parts if part is not None]
    whole = torch.cat(here) if len(here) == run.count else None
    made = one.link.spread(whole, last)
    run.finish()
    return made


class Chain(torch.autograd.Function):
    """The chain of layers, as one operation of the loop's graph.

    ``anchor`` requires gradients, so that the output does, whatever the input.
    """

    @staticmethod
    def forward(ctx: Any, one: Pass, whole: Tensor, anchor: Tensor, x: Tensor) -> Tensor:
        ctx.one, ctx.needs_input = one, x.requires_grad
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        one: Pass = ctx.one
        found = backward(one, gradient.contiguous(), ctx.needs_input)
        return None, None, None, found


def backward(one: Pass, gradient: Tensor, needs_input: bool) -> Tensor | None:
    """Run the stages' backwards. Returns the gradient of the input on all ranks, if needed."""
    run = one.run
    retain = one.begin_backward(run)
    seeds = gradient.tensor_split(run.count)
    run.is_broken = True  # until it is through
    for stage in reversed(run.cut.local_stages):
        for index in reversed(range(run.count)):
            run.backward(stage, index, retain, seeds[index] if _is_last(one, stage) else None)
    found = one.input_gradient() if needs_input else None
    run.finish()
    run.is_broken = False
    return found


def _is_last(one: Pass, stage: int) -> bool:
    return stage == one.run.cut.stages - 1


@dataclass
class Pass:
    """One forward of the loop with its backward.

    ``begin_backward``: raises Unsupported unless the session runs a backward; returns whether the
    loop keeps the graph.
    """

    run: Run
    link: Link
    stream: LocalStream
    begin_backward: Callable[[Run], bool]

    def input_gradient(self) -> Tensor | None:
        """Broadcast the input's gradient from the first place to the pipeline."""
        mine = self.run.input_gradient() if 0 in self.run.cut.local_stages else None
        return self.link.spread(mine, self.run.cut.place_of(0))


class LocalStream:
    """Generators seeded for each pass from the common stream, which does not advance.

    A pass is known by the clock of the session and its number since that moved. So a run that
    resumes from a checkpoint draws the numbers that it would have drawn.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._clock, self._passes = -1, 0

    @contextmanager
    def drawn_from(self) -> Iterator[None]:
        now = self._session.random.now
        self._passes = self._passes + 1 if now == self._clock else 0
        self._clock = now
        common = random_streams.read()
        key = (int(torch.randint(2**62, (1,))), now, self._passes, self._session.rank)
        random_streams.seed(hash(key) % 2**62)  # of numbers, it is the same in every process
        try:
            yield
        finally:
            random_streams.write(common)
