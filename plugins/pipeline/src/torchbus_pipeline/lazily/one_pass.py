"""1F1B and interleaved 1F1B: a micro-batch's backward follows soon after its forward.

Torch's schedules say in which order; the loop's own operations after the model are the loss.

Source: Narayanan et al., PipeDream, SOSP 2019; Narayanan et al., Efficient Large-Scale Language
Model Training on GPU Clusters Using Megatron-LM, SC 2021 (interleaved).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchbus_pipeline._compat import Order
from torchbus_pipeline.lazily.replay import (
    OF_A_PART,
    Replay,
    agree,
    bounds_of,
    total_of,
    weights_of,
)
from torchbus_pipeline.schedule.stream import Pass


class Outcome(NamedTuple):
    """The result. ``loss``: of the whole batch. ``holds``: it is the mean or sum of its parts.

    None for ``loss``: the pass has failed.
    """

    loss: Tensor | None
    holds: bool


class OnePass:
    """One pass. ``kind``: of the loss, "mean" or "sum". ``seed``: the gradient of the loss."""

    def __init__(self, one: Pass, order: Order, replay: Replay, kind: str, seed: Tensor) -> None:
        self._one, self._run, self._order, self._replay = one, one.run, order, replay
        self._rows, self._last = len(one.run.inputs.x), one.run.cut.stages - 1
        self._bounds = bounds_of(self._rows, one.run.count)
        self._weights = weights_of(kind, self._rows, one.run.count)
        self._kind, self._seed = kind, seed
        self._losses: dict[int, Tensor] = {}
        self._loss_values: dict[int, Tensor] = {}
        self._takes_no_part = False

    def run(self) -> Outcome:
        """Run forward and backward of all micro-batches. All ranks of the pipeline call it."""
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

    def _outcome(self) -> Outcome:
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
            return Outcome(None, True)
        return Outcome(spread[0].clone(), bool(spread[1]))

    def outside(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors outside the stages that the pass has reached, with their gradients.

        The same on all ranks, which all call it.
        """
        x, roots, gradients = self._run.inputs.x, [], []
        found = [self._spread(inner.grad) for inner in self._replay.inner]
        if x.requires_grad:
            roots.append(x)
            gradients.append(self._one.input_gradient())
        roots, gradients = [*roots, *self._replay.outside], [*gradients, *found]
        retained = [
            (one, gradient)
            for one, gradient in zip(roots, gradients, strict=True)
            if gradient is not None
        ]
        return [one for one, _ in retained], [gradient for _, gradient in retained]

    def _spread(self, tensor: Tensor | None) -> Tensor | None:
        return self._one.link.spread(tensor, self._run.cut.place_of(self._last))
