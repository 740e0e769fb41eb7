"""One pass of a batch through the stages, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import Context, Unsupported

from torchbus_pipeline.cut import Cut
from torchbus_pipeline.divergence import PipelineRanks
from torchbus_pipeline.inputs import ChainInputs, LayerArgument, mutable_in, refuse_reading
from torchbus_strategy import random_streams

MICROBATCHES_AT_MOST = 4096
Key = tuple[int, int]


class MicroBatchRun:
    """A pass of ``count`` micro-batches. If ``trains``, it stores the tensors for the backward.

    An error of a layer is stored in ``error``, and the pass continues without values, so that the
    other ranks do not wait for its messages. ``is_broken`` is True if something else has ended the
    backward on this rank, such as an exception from a signal handler. Then other ranks wait for
    messages that will not come.
    """

    def __init__(self, cut: Cut, link: Link, inputs: ChainInputs, count: int, trains: bool) -> None:
        self.cut, self.inputs, self.count = cut, inputs, count
        self.error: Exception | None = None
        self.is_broken = False
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
        """Compute a micro-batch of one stage, and send its output to the next stage.

        Returns the output, or None after an error of this or an earlier stage.
        """
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
                    watched = list(map(LayerArgument, self.inputs.originals[number], copies))
                    made = layer(made, *args, **kwargs)
                    self._check(number, made, len(given))
                    self._note_written(number, watched)
        except Exception as error:
            self.error = self.error or error
            return None
        return made

    def _note_written(self, number: int, watched: list[LayerArgument]) -> None:
        """Disable objects that a layer has written to, as the loop would read stale values."""
        for one in watched:
            if one.is_written(f"{self.cut.found.names()[number]} of {self.cut.name}"):
                self.cut.written.add(type(one.original))
                refuse_reading(one.original, self.cut.name)

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
        """Run the backward of ``forward``.

        For the last stage, pass the gradient of its output as ``seed``, or a loss that was computed
        from the output as ``root``.
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
        """Return the gradient of the chain's input, after all micro-batches of stage 0."""
        parts = [self._given[0, index] for index in range(self.count)]
        return torch.cat([torch.zeros_like(one) if one.grad is None else one.grad for one in parts])

    def finish(self) -> None:
        """Wait until all messages are sent."""
        self._link.finish()

    def _tag(self, stage: int, index: int) -> int:
        return stage * MICROBATCHES_AT_MOST + index


FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.bool, torch.uint8)
HEAD, BODY, GRADIENT = range(3)
MOST_DIMS = 8
FAILED = -1


class Link:
    """Sends and receives the messages of one pass, numbered so that they can't be mixed up."""

    def __init__(self, team: PipelineRanks, device: torch.device) -> None:
        self._team, self._device = team, device
        self._sent: list[tuple[dist.Work, Tensor]] = []

    def send(self, place: int, tag: int, tensor: Tensor | None) -> None:
        """Send activations, or None if this or an earlier stage has failed."""
        self._send(place, tag, HEAD, self._head(tensor))
        if tensor is not None:
            self._send(place, tag, BODY, tensor.detach().contiguous())

    def receive(self, place: int, tag: int) -> Tensor | None:
        """Receive the activations, or None, that another place passed to ``send``."""
        head = torch.empty(MOST_DIMS + 2, dtype=torch.int64, device=self._device)
        self._receive(place, tag, HEAD, head)
        made = self._like(head)
        if made is not None:
            self._receive(place, tag, BODY, made)
        return made

    def send_gradient(self, place: int, tag: int, tensor: Tensor) -> None:
        self._send(place, tag, GRADIENT, tensor.detach().contiguous())

    def receive_gradient(self, place: int, tag: int, like: Tensor) -> Tensor:
        """Receive the gradient of a tensor that this rank has sent."""
        gradient = torch.empty_like(like, memory_format=torch.contiguous_format)
        self._receive(place, tag, GRADIENT, gradient)
        return gradient

    def spread(self, tensor: Tensor | None, place: int) -> Tensor | None:
        """Broadcast the tensor of one place to the pipeline, or None if that place has failed.

        All ranks of the pipeline must call this. The other ranks need not know the shape or dtype.
        """
        mine = self._team.place == place
        head = self._head(tensor)
        self._team.spread(head, place)
        made = tensor if mine else self._like(head)
        if made is not None:
            made = self._team.spread(made.detach().contiguous(), place)
        return made

    def finish(self) -> None:
        """Wait until all messages are sent."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def _head(self, tensor: Tensor | None) -> Tensor:
        if tensor is None:
            numbers = [FAILED] * (MOST_DIMS + 2)
        else:
            shape = [*tensor.shape, *[0] * (MOST_DIMS - tensor.dim())]
            numbers = [DTYPES.index(tensor.dtype), tensor.dim(), *shape]
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def _like(self, head: Tensor) -> Tensor | None:
        dtype, dims, *shape = head.tolist()
        if dtype == FAILED:
            return None
        return torch.empty(shape[:dims], dtype=DTYPES[dtype], device=self._device)

    def _send(self, place: int, tag: int, kind: int, tensor: Tensor) -> None:
        work = dist.isend(tensor, self._team.ranks[place], tag=3 * tag + kind)
        assert work is not None
        self._sent.append((work, tensor))

    def _receive(self, place: int, tag: int, kind: int, tensor: Tensor) -> None:
        dist.recv(tensor, self._team.ranks[place], tag=3 * tag + kind)


def forward(one: ForwardPass) -> Tensor | None:
    """Return the whole output on all ranks, or None on all ranks if any layer has failed."""
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

    ``anchor`` requires gradients, so that the output does even if the input does not.
    """

    @staticmethod
    def forward(ctx: Any, one: ForwardPass, whole: Tensor, anchor: Tensor, x: Tensor) -> Tensor:
        ctx.one, ctx.needs_input = one, x.requires_grad
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        one: ForwardPass = ctx.one
        found = backward(one, gradient.contiguous(), ctx.needs_input)
        return None, None, None, found


def backward(one: ForwardPass, gradient: Tensor, needs_input: bool) -> Tensor | None:
    """Run the stages' backwards.

    Returns, on all ranks, the gradient of the input in its shape, or None unless ``needs_input``.
    """
    run = one.run
    retain = one.begin_backward(run)
    seeds = gradient.tensor_split(run.count)
    run.is_broken = True  # reset once all stages have run
    for stage in reversed(run.cut.local_stages):
        for index in reversed(range(run.count)):
            seed = seeds[index] if stage == run.cut.stages - 1 else None
            run.backward(stage, index, retain, seed)
    found = one.input_gradient() if needs_input else None
    run.finish()
    run.is_broken = False
    return found


@dataclass
class ForwardPass:
    """One forward of the loop with its backward.

    ``begin_backward`` raises Unsupported unless the session runs a backward. It returns whether the
    loop retains the graph.
    """

    run: MicroBatchRun
    link: Link
    stream: PassGenerators
    begin_backward: Callable[[MicroBatchRun], bool]

    def input_gradient(self) -> Tensor | None:
        """Broadcast the input's gradient from the first place to the pipeline."""
        mine = self.run.input_gradient() if 0 in self.run.cut.local_stages else None
        return self.link.spread(mine, self.run.cut.place_of(0))


class PassGenerators:
    """Generators seeded for each pass from the common stream, which does not advance.

    The seed depends on the session's clock and on the number of passes since it last advanced. So a
    run that resumes from a checkpoint draws the same numbers as an uninterrupted run.
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
        random_streams.seed(hash(key) % 2**62)  # a hash of numbers is the same in every process
        try:
            yield
        finally:
            random_streams.write(common)
