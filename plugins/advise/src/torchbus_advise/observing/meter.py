"""Bytes and FLOPs of each pass: what the graphs hold when backward begins, what was computed when
it has ended."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.flop_counter import FlopCounterMode
from torchbus import objects
from torchbus.plugin import Surround
from torchbus.tree import leaves

from torchbus_advise.observing.facts import PassFacts
from torchbus_advise.observing.saved import SavedTensors

T = TypeVar("T")


class Meter:
    """Hears of models before they are called, and of every backward."""

    def __init__(self) -> None:
        self._saved = SavedTensors()
        self._flops = FlopCounterMode(display=False)
        self._surround = Surround(self._in_block)
        self._models: list[weakref.ref[Module]] = []
        self._parameters: list[Tensor] = []
        self._blocks: dict[int, int] = {}
        self._counted = 0
        self._in_blocks = 0
        self._held_bytes = (0, 0)
        self.block_count = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(self._surround.close)
            stack.enter_context(self._saved.recording())
            stack.enter_context(self._flops)
            yield

    def know(self, model: Module) -> None:
        self._models.append(weakref.ref(model))
        for block in objects.repeated_blocks(model):
            if id(block) not in self._blocks:
                self._blocks[id(block)] = self.block_count
                self.block_count += 1
                self._surround.add(block)

    def know_parameters(self, parameters: list[Tensor]) -> None:
        """Those that an optimizer holds: some are in no model."""
        self._parameters += parameters

    def before_backward(self) -> None:
        """By now every model has the tensors that it trains with, converted to another dtype."""
        models = [found for found in (one() for one in self._models) if found is not None]
        inside = [one for model in models for one in (*model.parameters(), *model.buffers())]
        self._saved.leave_out([*inside, *self._parameters])
        self._held_bytes = self._saved.total_bytes(), self._saved.checkpointed_bytes()

    def after_backward(self, samples: int | None) -> PassFacts:
        """The pass that this backward ends."""
        total = self._flops.get_total_flops()
        found = PassFacts(samples, *self._held_bytes, total - self._counted, self._in_blocks)
        self._counted, self._in_blocks = total, 0
        self._saved.forget_inputs()
        return found

    def _in_block(
        self,
        block: Module,
        forward: Callable[..., T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> T:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        inputs = [one for one in leaves([args, kwargs]) if isinstance(one, Tensor)]
        before = self._flops.get_total_flops()
        with self._saved.inside(self._blocks[id(block)], inputs):
            result = forward(*args, **kwargs)
        self._in_blocks += self._flops.get_total_flops() - before
        return result
