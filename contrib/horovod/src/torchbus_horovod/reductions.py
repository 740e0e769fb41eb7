"""Gradients are averaged while backward makes the next ones."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from torch import Tensor

from torchbus_horovod._compat import gradient_node, graph_task
from torchbus_horovod.averaging import HEADER, Averaging, Compression
from torchbus_strategy.backward import engine as strategy_engine
from torchbus_strategy.backward import header, reduction
from torchbus_strategy.parameters import rank0_values
from torchbus_strategy.parameters import trained as strategy_trained

OUTSIDE = -1
"""The graph task where no backward runs."""


class WhileBackward(reduction.AfterBackward):
    """Begins to average a gradient as soon as the graph has made it; the others after the graph.

    A gradient is final once its node has run in the loop's own graph, where it runs once. A graph
    inside of it, of reentrant checkpointing, may add to a gradient again: those wait.

    What the ranks tell each other goes with the last gradient: on its own, it would wait for
    another of Horovod's cycles.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        buffers: rank0_values.Buffers,
        averaging: Averaging,
    ) -> None:
        super().__init__(parameters, buffers, averaging.average)
        self._averaging = averaging
        self._task = OUTSIDE
        self._missing = 0
        self._loss: Tensor | None = None
        self._told: Tensor | None = None
        self._nodes = [gradient_node(parameter) for parameter in self.parameters]
        self._hooks = [
            node.register_hook(functools.partial(self._made, number, parameter))
            for number, (node, parameter) in enumerate(
                zip(self._nodes, self.parameters, strict=True), 1
            )
        ]
        self._hooks.append(self.header.parameter.register_hook(self._begun))

    def close(self) -> None:
        """Let go of torch's side, which forms a cycle with the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._nodes.clear()

    def backward(
        self,
        engine: strategy_engine.Engine,
        roots: strategy_engine.Roots,
        slots: header.Slots,
        loss: Tensor | None,
        local: set[int],
        error: BaseException | None = None,
    ) -> None:
        """See ``Reduction``."""
        self._loss, self._told, self._missing = loss, None, len(self.parameters)
        try:
            super().backward(engine, roots, slots, loss, local, error)
        finally:
            self._task, self._loss = OUTSIDE, None
            error = None  # its traceback leads here

    def tell(self, loss: Tensor | None, present: Sequence[bool]) -> Tensor:
        """See ``AfterBackward``."""
        return super().tell(loss, present) if self._told is None else self._told

    def _begun(self, _: Tensor) -> None:
        """Runs first in the graph: the header's gradient is ready from the start."""
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
            self._told = self.tell(self._loss, [True] * len(self.parameters))
            self._averaging.begin(HEADER, self._told)


class Sets:
    """One reduction for each set of parameters that require gradients."""

    def __init__(
        self, hvd: object, trained: strategy_trained.Trained, adasum: bool, compression: Compression
    ) -> None:
        self._trained = trained
        self._make_averaging = functools.partial(
            Averaging, hvd, adasum=adasum, compression=compression
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
                rank0_values.Buffers(self._trained.models(parameters)),
                self._make_averaging(f"torchbus.{next(self._numbers)}"),
            )
        return self._made[key]

    def drop(self) -> None:
        """See ``Reductions``."""
        for one in self._made.values():
            one.close()
        self._made.clear()
