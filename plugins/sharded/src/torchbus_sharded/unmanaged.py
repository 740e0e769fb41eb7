"""Averages tensors that an optimizer holds but no called module owns.

They are whole on every rank, and averaged after each backward.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import BackwardCall, Context, UsageError, hookimpl

from torchbus_sharded.optimizers import parameters_of
from torchbus_sharded.wrapping import called_parts
from torchbus_strategy.backward import before_step
from torchbus_strategy.checks import hyperparameters
from torchbus_strategy.parameters import averaging, leaves, per_rank, rank0_values


class UnmanagedTensors:
    """Finds unmanaged tensors in an optimizer after its models were sharded."""

    def __init__(self, session: Context, forward_methods: Collection[str]) -> None:
        self._session = session
        self._forward_methods = forward_methods
        self._shared: dict[int, Tensor] = {}
        self._per_rank = per_rank.PerRankTensors(session)
        self._leaves = leaves.OtherLeaves(session, self._knows)
        self._assigned = before_step.Assigned()
        session.on_close.callback(self._shared.clear)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        """Add the tensors that no module owns. All ranks call it with the same parameters."""
        if optimizer is not None and not self._session.captures(optimizer):
            return
        new = self._unowned(parameters if optimizer is None else _whole_tensors(optimizer))
        what = "adopted tensors" if optimizer is None else type(optimizer).__name__
        mine = [] if optimizer is None else self._per_rank.find(new, what)
        shared = {id(tensor): tensor for tensor in new if not any(tensor is one for one in mine)}
        if shared:
            _refuse_empty(what, list(shared.values()))
            rank0_values.copy_from_rank0(
                list(shared.values()),
                what,
                {} if optimizer is None else hyperparameters.of_optimizer(optimizer),
            )
            self._shared |= shared
        if optimizer is not None:
            self._assigned.watch(optimizer, self._shared_by(optimizer))

    def _unowned(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return new tensors that no called module owns.

        A ParameterList, for example, is not called.
        """
        new = [tensor for tensor in tensors if not self._knows(tensor)]
        owned = {
            id(parameter)
            for model in (objects.models_of(new) if new else ())
            for part in called_parts(model, self._forward_methods)
            for parameter in part.parameters()
        }
        return [tensor for tensor in new if id(tensor) not in owned]

    def shared(self) -> list[Tensor]:
        return list(self._shared.values())

    def _knows(self, tensor: Tensor) -> bool:
        return id(tensor) in self._shared or tensor in self._per_rank

    @contextmanager
    def averaged(self, call: BackwardCall) -> Iterator[list[Tensor]]:
        """Average over ranks what a backward in the block adds to the gradients of these tensors.

        All ranks call it. It yields the tensors, and others that differ between ranks. In the
        block, the gradients of the averaged tensors are only those of this backward.
        """
        others = self._leaves.find(call)
        if not (others or self._shared or self._per_rank):
            yield []
            return
        tensors = self.shared()
        before = [tensor.grad for tensor in tensors]
        for tensor in tensors:
            tensor.grad = None
        with self._per_rank.over_all_ranks(others):
            yield [*tensors, *self._per_rank.tensors(), *others]
            self._leaves.fill()
        if tensors:
            averaging.average(tensors, 1.0)
        for tensor, retained in zip(tensors, before, strict=True):
            if retained is not None:
                tensor.grad = retained if tensor.grad is None else retained + tensor.grad
        self._assigned.synchronised()

    @hookimpl
    def gradients_ready(self, optimizer: Optimizer, closure: object) -> None:
        """Average the gradients that the loop has assigned itself."""
        if closure is None and self._assigned.found(optimizer):
            averaging.average(self._shared_by(optimizer), self._session.share.weight)
            self._assigned.synchronised()

    def _shared_by(self, optimizer: Optimizer) -> list[Tensor]:
        return [tensor for tensor in _whole_tensors(optimizer) if id(tensor) in self._shared]

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        many = (
            f"{len(self._shared)} tensors that no module owns are whole on every rank, and averaged"
            " after each backward"
        )
        return {"notes": [*filter(None, [many if self._shared else "", self._per_rank.note])]}


def _refuse_empty(what: str, tensors: list[Tensor]) -> None:
    empty = [tuple(tensor.shape) for tensor in tensors if tensor.is_meta]
    if empty:
        raise UsageError(
            f"{what}: tensors of shape {', '.join(map(str, empty))} are on the meta device, and in"
            " no module that has a forward, so nothing gives them values: create them on the CPU,"
            " or give their module a forward"
        )


def _whole_tensors(optimizer: Optimizer) -> list[Tensor]:
    return [one for one in parameters_of(optimizer) if not isinstance(one, DTensor)]
