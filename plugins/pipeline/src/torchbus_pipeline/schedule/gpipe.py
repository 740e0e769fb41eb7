"""GPipe: all micro-batches forward, and in the loop's backward all of them back.

The output is there at once, on all ranks, so that the loop may do anything with it.

Source: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism,
NeurIPS 2019.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbus_pipeline.schedule.passes import Pass


def forward(one: Pass) -> Tensor | None:
    """The whole output, on all ranks. None on all of them if a layer has failed on some rank."""
    run, own = one.run, one.run.cut.own
    with one.stream.drawn_from():
        for stage in own:
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
    """Drive the stages back. Returns the gradient of the input, on all ranks, if it is needed."""
    run = one.run
    retain = one.begin_backward(run)
    seeds = gradient.tensor_split(run.count)
    for stage in reversed(run.cut.own):
        for index in reversed(range(run.count)):
            run.backward(stage, index, retain, seeds[index] if _is_last(one, stage) else None)
    found = one.input_gradient() if needs_input else None
    run.finish()
    return found


def _is_last(one: Pass, stage: int) -> bool:
    return stage == one.run.cut.stages - 1
