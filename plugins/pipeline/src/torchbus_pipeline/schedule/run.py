"""One pass of a batch through the stages, a micro-batch at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torchbus.plugin import Unsupported

from torchbus_pipeline.model.cut import Cut
from torchbus_pipeline.schedule.inputs import Inputs
from torchbus_pipeline.schedule.messages import FLOATS, Link
from torchbus_pipeline.schedule.objects import Given, mutable_in, refuse_reading

MICROBATCHES_AT_MOST = 4096
Key = tuple[int, int]


class Run:
    """Keeps what the backward needs. ``count`` micro-batches; ``trains``: there will be a backward.

    An error of a layer is kept in ``error``, and the pass goes on with nothing. So the other ranks
    are not left waiting.
    """

    def __init__(self, cut: Cut, link: Link, inputs: Inputs, count: int, trains: bool) -> None:
        self.cut, self.inputs, self.count = cut, inputs, count
        self.error: Exception | None = None
        self._link, self.trains = link, trains
        self._last = cut.stages - 1
        self._given: dict[Key, Tensor] = {}
        self._made: dict[Key, Tensor] = {}
        self.outputs: dict[int, Tensor | None] = {}
        self._copies: dict[int, dict[int, object]] = {}
        trained = [trains and cut.needs_gradients(stage) for stage in range(cut.stages)]
        self._reaches = [
            trains and (inputs.x.requires_grad or any(trained[:stage]))
            for stage in range(cut.stages)
        ]

    # Forward -------------------------------------------------------------------------------------

    def forward(self, stage: int, index: int) -> Tensor | None:
        """Compute a micro-batch of one stage, and send it on. Returns its output."""
        given = self._input(stage, index)
        made = None if given is None else self._compute(stage, index, given)
        if stage == self._last:
            self.outputs[index] = None if made is None else made.detach()
        else:
            self._link.send(self.cut.place_of(stage + 1), self._tag(stage, index), made)
        if self.trains and given is not None:
            self._given[stage, index] = given
        if self.trains and made is not None:
            self._made[stage, index] = made
        return made

    def _input(self, stage: int, index: int) -> Tensor | None:
        if stage == 0:
            given: Tensor | None = self.inputs.part(index, self.count)
        else:
            given = self._link.receive(self.cut.place_of(stage - 1), self._tag(stage - 1, index))
        if given is not None and self._reaches[stage]:
            given.requires_grad_()
        return given

    def _compute(self, stage: int, index: int, given: Tensor) -> Tensor | None:
        try:
            with torch.set_grad_enabled(self.trains):
                made = given
                for number, layer in self.cut.layers_of(stage):
                    known = self._copies.setdefault(index, {})
                    args, kwargs = self.inputs.extra(number, index, self.count, known)
                    copies = mutable_in((*args, *kwargs.values()))
                    watched = list(map(Given, self.inputs.own[number], copies))
                    made = layer(made, *args, **kwargs)
                    self._check(number, made, len(given))
                    self._note_written(number, watched)
        except Exception as error:
            self.error = self.error or error
            return None
        return made

    def _note_written(self, number: int, watched: list[Given]) -> None:
        """What a layer has written to is here, and nowhere where the loop could read it."""
        for one in watched:
            if one.is_written(f"{self.cut.found.names()[number]} of {self.cut.name}"):
                self.cut.written.add(type(one.own))
                refuse_reading(one.own, self.cut.name)

    def _check(self, number: int, made: object, rows: int) -> None:
        if isinstance(made, Tensor) and made.dtype in FLOATS and made.dim() and len(made) == rows:
            return
        kind = (
            f"{made.dtype} of shape {tuple(made.shape)}"
            if isinstance(made, Tensor)
            else type(made).__name__
        )
        raise Unsupported(
            f"{self.cut.found.names()[number]} of {self.cut.name} returns {kind} for {rows}"
            " samples: strategy='pipeline' sends a floating-point tensor with samples in dim 0 from"
            " layer to layer; use strategy='ddp'"
        )

    # Backward ------------------------------------------------------------------------------------

    def backward(
        self,
        stage: int,
        index: int,
        retain: bool,
        seed: Tensor | None = None,
        root: Tensor | None = None,
    ) -> None:
        """The backward of ``forward``. For the last stage, ``seed`` is the gradient of its output,
        or ``root`` is a loss that was computed from that.
        """
        made, given = self._made.get((stage, index)), self._given.get((stage, index))
        if given is None:
            return  # an earlier stage has failed
        given.grad = None
        if made is not None:
            self._run_engine(stage, index, made, retain, seed, root)
        if stage and self._reaches[stage]:
            gradient = torch.zeros_like(given) if given.grad is None else given.grad
            place = self.cut.place_of(stage - 1)
            self._link.send_gradient(place, self._tag(stage - 1, index), gradient)
        if not retain:
            self._made.pop((stage, index), None)
            if stage:
                del self._given[stage, index]

    def _run_engine(
        self,
        stage: int,
        index: int,
        made: Tensor,
        retain: bool,
        seed: Tensor | None,
        root: Tensor | None,
    ) -> None:
        if stage < self._last and self._reaches[stage + 1]:
            seed = self._link.receive_gradient(
                self.cut.place_of(stage + 1), self._tag(stage, index), made
            )
        if root is None and (seed is None or not made.requires_grad):
            return
        try:
            torch.autograd.backward(made if root is None else root, seed, retain_graph=retain)
        except Exception as error:
            self.error = self.error or error

    def input_gradient(self) -> Tensor | None:
        """The gradient of the chain's input, once every micro-batch of stage 0 is through."""
        parts = [self._given[0, index] for index in range(self.count)]
        return torch.cat([torch.zeros_like(one) if one.grad is None else one.grad for one in parts])

    def finish(self) -> None:
        """Wait until everything is sent."""
        self._link.finish()

    def _tag(self, stage: int, index: int) -> int:
        return stage * MICROBATCHES_AT_MOST + index
