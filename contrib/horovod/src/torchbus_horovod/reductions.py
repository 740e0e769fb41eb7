"""Averages gradients with Horovod while backward makes the next ones."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torchbus.plugin import Unsupported

from torchbus_horovod._compat import gradient_node, graph_task
from torchbus_strategy.backward import engine as strategy_engine
from torchbus_strategy.backward import header, reduction
from torchbus_strategy.parameters import rank0_values
from torchbus_strategy.parameters import trained as strategy_trained

OUTSIDE = -1
"""The graph task outside of a backward."""


class WhileBackward(reduction.AfterBackward):
    """Starts to average each gradient as soon as it is final, and the remaining ones afterwards.

    A gradient is final once its node has run in the loop's graph, where the node runs once. A
    nested graph, of reentrant checkpointing, may add to a gradient again. Gradients of nested
    graphs wait until the whole graph has run.

    The ranks' metadata is sent with the last gradient, because it would wait for another cycle of
    Horovod if it were sent later.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        buffers: rank0_values.Buffers,
        averaging: TensorAveraging,
    ) -> None:
        super().__init__(parameters, buffers, averaging.average)
        self._averaging = averaging
        self._task = OUTSIDE
        self._missing = 0
        self._loss: Tensor | None = None
        self._sent_header: Tensor | None = None
        self._nodes = [gradient_node(parameter) for parameter in self.parameters]
        self._hooks = [
            node.register_hook(functools.partial(self._made, number, parameter))
            for number, (node, parameter) in enumerate(
                zip(self._nodes, self.parameters, strict=True), 1
            )
        ]
        self._hooks.append(self.header.parameter.register_hook(self._begun))

    def close(self) -> None:
        """Release torch's objects, which form a reference cycle with the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._nodes.clear()

    def backward(
        self,
        engine: strategy_engine.BackwardFunction,
        roots: strategy_engine.Roots,
        slots: header.Slots,
        loss: Tensor | None,
        local: set[int],
        error: BaseException | None = None,
    ) -> None:
        """See ``Reduction``."""
        self._loss, self._sent_header, self._missing = loss, None, len(self.parameters)
        try:
            super().backward(engine, roots, slots, loss, local, error)
        finally:
            self._task, self._loss = OUTSIDE, None
            error = None  # its traceback refers to this frame

    def complete_header(self, loss: Tensor | None, present: Sequence[bool]) -> Tensor:
        """See ``AfterBackward``."""
        return (
            super().complete_header(loss, present)
            if self._sent_header is None
            else self._sent_header
        )

    def _begun(self, _: Tensor) -> None:
        """Note the loop's graph task. The header's gradient comes first in the graph."""
        self._task = graph_task()

    def _made(self, number: int, parameter: Tensor, *_: object) -> None:
        gradient = parameter.grad
        if self._task == OUTSIDE or gradient is None or gradient.is_sparse:
            return
        if graph_task() == self._task:
            self._begin(number, gradient)
        else:
            self._averaging.refuse_begun(number)

    def _begin(self, number: int, gradient: Tensor) -> None:
        self._averaging.begin(number, gradient)
        self._missing -= 1
        if not self._missing:
            self._sent_header = self.complete_header(self._loss, [True] * len(self.parameters))
            self._averaging.begin(HEADER, self._sent_header)


class Sets:
    """Makes a ``WhileBackward`` for each set of parameters that require gradients."""

    def __init__(
        self,
        hvd: object,
        trained: strategy_trained.TrainedParameters,
        adasum: bool,
        compression: Compression,
    ) -> None:
        self._trained = trained
        self._make_averaging = functools.partial(
            TensorAveraging, hvd, adasum=adasum, compression=compression
        )
        self._numbers = itertools.count()
        self._made: dict[tuple[int, ...], WhileBackward] = {}

    def current(self) -> WhileBackward:
        """See ``Reductions``."""
        parameters = self._trained.requiring_gradients()
        key = tuple(map(id, parameters))
        if key not in self._made:
            self._made[key] = WhileBackward(
                parameters,
                self._trained.buffers(self._trained.models(parameters)),
                self._make_averaging(f"torchbus.{next(self._numbers)}"),
            )
        return self._made[key]

    def drop(self) -> None:
        """See ``Reductions``."""
        for one in self._made.values():
            one.close()
        self._made.clear()


PAUSE_S = 1e-3
"""The pause between two polls of a rank that waits. Shorter ones slow Horovod's threads down."""
TWICE = (
    "backward makes a gradient in its own graph, and again in a graph inside of it, as reentrant"
    " checkpointing of shared parameters does: use checkpoint(..., use_reentrant=False)"
)
HEADER = 0
Compression = Literal["none", "fp16"]


class RunningReduction(NamedTuple):
    """A running all-reduce of ``sent``, whose result goes to ``tensor``."""

    tensor: Tensor
    sent: Tensor
    handle: int


class TensorAveraging:
    """Replaces tensors by their mean over ranks, or their combination by Adasum.

    Each tensor has a number, equal on all ranks. Number 0 is the header, whose mean is exact: it is
    neither compressed nor combined by Adasum.
    """

    def __init__(self, hvd: Any, name: str, adasum: bool, compression: Compression) -> None:
        self._hvd = hvd
        self._name = name
        self._op = hvd.Adasum if adasum else hvd.Average
        self._compression = compression
        self._running: dict[int, RunningReduction] = {}

    def begin(self, number: int, tensor: Tensor) -> None:
        """Start to average a tensor, which must not change until ``average`` has returned.

        Raises Unsupported if its average has already started.
        """
        self.refuse_begun(number)
        sent = self._to_send(tensor.detach(), number == HEADER)
        handle = self._hvd.allreduce_async_(
            sent,
            name=f"{self._name}.{number}",
            op=self._hvd.Average if number == HEADER else self._op,
        )
        self._running[number] = RunningReduction(tensor, sent, handle)

    def refuse_begun(self, number: int) -> None:
        """Raise Unsupported if the average of this gradient has already started."""
        if number in self._running:
            raise Unsupported(TWICE)

    def average(self, tensors: list[Tensor]) -> None:
        """Average all tensors in place; the average of some may have started. All ranks call it.

        A tensor's index is its number. Raises Unsupported if a tensor replaced one whose average
        had started.
        """
        for number, tensor in enumerate(tensors):
            if number not in self._running:
                self.begin(number, tensor)
        running, self._running = self._running, {}
        for one in reversed(running.values()):  # the last one to begin ends last
            self._finish(one)
        if any(one.tensor is not tensors[number] for number, one in running.items()):
            raise Unsupported(TWICE)

    def _to_send(self, tensor: Tensor, exactly: bool) -> Tensor:
        """Return the tensor as Horovod accepts it: contiguous, real, and not in bfloat16.

        With ``compression="fp16"`` it is in float16, unless ``exactly`` is set.
        """
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if self._compression == "fp16" and not exactly:
            real = real.half()
        elif real.dtype == torch.bfloat16:
            real = real.float()
        return real.contiguous()

    def _finish(self, one: RunningReduction) -> None:
        while not self._hvd.poll(one.handle):
            time.sleep(PAUSE_S)  # Horovod's wait would block Python's other threads
        self._hvd.synchronize(one.handle)
        if one.sent.data_ptr() != one.tensor.data_ptr():
            mean = torch.view_as_complex(one.sent) if one.tensor.is_complex() else one.sent
            one.tensor.copy_(mean)
