"""Driving DDP's reducer from inside ``backward``, without wrapping any module."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchbus.plugin import Context, Unsupported

from torchbus_ddp.backward.engine import Engine, run
from torchbus_ddp.backward.header import WEIGHT, make_header
from torchbus_ddp.backward.optimizer_groups import LEARNING_BACKWARDS, Groups
from torchbus_ddp.backward.reducer import Reducer, make_reducer

Snapshot = list[tuple[Tensor | None, int]]


class Plan:
    """Synchronises one set of parameters, all of which require gradients.

    ``header`` is what the ranks told each other in the last backward. ``holders`` says which optimizers hold each parameter.
    """

    def __init__(
        self, session: Context, parameters: Sequence[nn.Parameter], holders: Sequence[Hashable], sparse: set[int], options: dict[str, Any]
    ) -> None:
        self.parameters = list(parameters)
        self.header = make_header(self.parameters[0], len(self.parameters))
        with torch.enable_grad():
            self._nodes = [_gradient_node(parameter) for parameter in self.parameters]
        self._sparse = sparse
        self._session = session
        self._options = options
        everything = tuple(range(len(self.parameters)))
        self._reducers: dict[tuple[int, ...], Reducer] = {everything: self._make(everything)}
        self._all = self._chosen = self._reducers[everything]
        self._wanted: tuple[int, ...] = everything
        self._groups = Groups(self.parameters, holders)
        self._uses = 0
        self._loss: Tensor | None = None
        self._absent: list[int] = []
        self._local: set[int] = set()
        self._started = False
        self._hook = self.header.parameter.register_hook(self._begin)

    def close(self) -> None:
        """Let go of the reducers: torch's side of the cycle between them and the hook is hidden from Python's collector."""
        self._hook.remove()
        self._reducers.clear()
        del self._all, self._chosen, self._session

    def backward(
        self, engine: Engine, tensors: Sequence[Any], gradients: Sequence[Any], retain_graph: bool | None, inputs: Any,
        slots: list[float], loss: Tensor | None, local: set[int],
    ) -> None:  # fmt: skip
        """Run ``engine`` on the tensors and synchronise. ``slots`` is what the header says; ``local`` are ids of parameters
        whose gradient holds what no rank has synchronised yet.

        An exception on the way leaves the reducer fit for the next call: what it has not reached takes part as zeros.
        """
        self._loss, self._local = loss, local
        self._started, self._absent = False, []
        self.header.begin(slots)
        before = self.snapshot()
        try:
            run(engine, self.header.parameter, self.header.seed, tensors, gradients, retain_graph, inputs)
        except BaseException:
            if self._started:
                self._complete(engine, before, self._chosen.members)
            raise
        finally:
            self._loss = None
        if self._absent:
            self._settle_absent(engine, before)
        self._chosen.finish()
        self._uses += 1
        if self._wanted not in self._reducers:
            self._reducers[self._wanted] = self._make(self._wanted)

    def synchronised(self) -> set[int]:
        """The ids of the parameters that the last backward has synchronised."""
        return {id(self.parameters[index]) for index in self._chosen.members}

    def snapshot(self) -> Snapshot:
        """What each gradient is now, to tell later whether it was touched."""
        gradients = [parameter.grad for parameter in self.parameters]
        return [(None, 0) if gradient is None else (gradient, gradient._version) for gradient in gradients]

    def _begin(self, _: Tensor) -> Tensor:
        """Runs first in the graph, before any gradient is accumulated: only here can torch tell what will be reached."""
        will_run = torch._C._will_engine_execute_node
        present = [will_run(node) for node in self._nodes]
        self._absent = [index for index, runs in enumerate(present) if not runs]
        if self._local:
            present = [runs or id(parameter) in self._local for runs, parameter in zip(present, self.parameters, strict=True)]
        self._choose(present)
        self._chosen.prepare()
        self._started = True
        sampled = self.parameters[self._uses % len(self.parameters)].data
        return self.header.fill(self._loss, sampled[(0,) * sampled.dim()], present)


    def _make(self, members: tuple[int, ...]) -> Reducer:
        return make_reducer(self._session, self.parameters, members, self.header.parameter, self._sparse, self._options)

    def _choose(self, present: Sequence[bool]) -> None:
        """The reducer for what is reached on any rank; one that does not exist yet is made once this backward is over."""
        self._chosen = self._all
        if self._groups.useful and self._uses >= LEARNING_BACKWARDS:
            self._wanted = self._groups.agree(present)
            self._chosen = self._reducers.get(self._wanted, self._all)

    def _settle_absent(self, engine: Engine, before: Snapshot) -> None:
        """Zeros for what the graph did not reach here; reentrant checkpointing may have reached it unannounced."""
        if any(_touched(self.parameters[index], before[index]) for index in self._absent):
            self._groups.hide()
            if any(_touched(self.parameters[index], before[index]) for index in set(self._absent) - self._chosen.members):
                raise Unsupported(
                    "reentrant checkpointing reached parameters that this backward left out: use checkpoint(..., use_reentrant=False)"
                )
        inside = [index for index in self._absent if index in self._chosen.members]
        self._complete(engine, before, inside)
        self._restore_none(before, inside)

    def _complete(self, engine: Engine, before: Snapshot, candidates: Iterable[int]) -> None:
        """Contribute zeros for those parameters that were not reached."""
        missing = [index for index in sorted(candidates) if not _touched(self.parameters[index], before[index])]
        if missing:
            engine([self.parameters[index] for index in missing], [self._zero(index) for index in missing])

    def _zero(self, index: int) -> Tensor:
        parameter = self.parameters[index]
        if id(parameter) in self._sparse:
            return torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.long), torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype), parameter.shape,
                device=parameter.device, check_invariants=False,
            )  # fmt: skip
        return torch.zeros_like(parameter)

    def _restore_none(self, before: Snapshot, absent: Iterable[int]) -> None:
        """A gradient that was None, and that no rank has made, is None again; it is zero where nothing counted on any rank."""
        if not self.header.mean()[WEIGHT]:
            return
        reached = self.header.reached()
        for index in absent:
            gradient = self.parameters[index].grad
            if before[index][0] is None and reached[index] < 1e-6 and gradient is not None and not _any(gradient):
                self.parameters[index].grad = None


def _touched(parameter: Tensor, before: tuple[Tensor | None, int]) -> bool:
    gradient = parameter.grad
    return gradient is not None and (gradient is not before[0] or gradient._version != before[1])


def _any(gradient: Tensor) -> bool:
    return bool((gradient._values() if gradient.is_sparse else gradient).any())


def _gradient_node(parameter: Tensor) -> Any:
    return parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
