"""Detects what the loop changes in the middle of a window: parameters, gradients, averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer
from torchbus import objects
from torchbus.compat.torch_names import version
from torchbus.plugin import BackwardCall, Context, Unsupported, hookimpl, warn

from torchbus_accumulate.averages import UnoptimizedChanges, WindowSums, digest
from torchbus_accumulate.messages import AVERAGED, CHANGED, MOVED, TOUCHED
from torchbus_accumulate.windows.sums import WindowSum

VALUES_READ = 20
VALUES_WAITED_FOR = 5
"""The number of first backwards in which values are compared, on the CPU and on other devices.

A version counter misses changes through ``parameter.data``.
"""


class ParameterMark(NamedTuple):
    """The values of an optimizer's parameters at its last backward, and its number of ``calls``."""

    calls: int
    size: int
    versions: int
    value: complex | None


class WindowChanges:
    """Compares parameters from one backward to the next one, and gradients from backward to step.

    Parameters that change between two backwards of one batch are an error: SAM would move them by
    the gradient of one rank and one batch. If they change between batches, the session warns that
    the loop does for each batch what it should do once per step. A real step resets the record.
    """

    def __init__(self, session: Context, optimizers: WindowSums) -> None:
        self._session = session
        self._optimizers = optimizers
        self._marks: dict[WindowSum, ParameterMark] = {}
        self._averages = UnoptimizedChanges(optimizers)
        self._backwards = 0
        self._said: set[str] = set()
        session.bus.register(self, "accumulate.changes")

    def before_backward(self) -> None:
        """Compare the parameters with those of the last backward."""
        self._backwards += 1
        if self._averages.have_moved():
            self._say(AVERAGED)
        for one in self._optimizers.sums:
            optimizer = one.optimizer()
            if optimizer is not None:
                self._compare(one, optimizer)

    def _compare(self, one: WindowSum, optimizer: Optimizer) -> None:
        parameters = one.parameters()
        versions = sum(map(version, parameters))
        value = self._value(_smallest(parameters)) if self._reads_values else None
        before = self._marks.get(one)
        self._marks[one] = ParameterMark(one.calls, len(parameters), versions, value)
        if before is None or before.size != len(parameters):
            return
        if before.versions == versions and (value == before.value or None in (value, before.value)):
            return
        if _are_renormalised(parameters):
            return
        if before.calls == one.calls:
            raise Unsupported(MOVED.format(type(optimizer).__name__))
        self._say(CHANGED.format(type(optimizer).__name__))

    @hookimpl
    def after_backward(self, call: BackwardCall) -> None:
        if self._reads_values:
            for one in self._optimizers.sums:
                self._note(one)

    def _note(self, one: WindowSum) -> None:
        value = self._value(_gradient_of(one))
        one.gradient = value if value is not None else one.gradient

    def before_commit(self, one: WindowSum, optimizer: Optimizer) -> None:
        """Compare the gradients with those after the last backward."""
        before, one.gradient = one.gradient, None
        now = None if before is None else self._value(_gradient_of(one))
        if now is not None and now != before:
            self._say(TOUCHED.format(type(optimizer).__name__))
        self._averages.note()

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._averages.may_differ = True
        self._marks.clear()  # another optimizer may hold the same parameters
        one = self._optimizers.of.get(id(optimizer))
        if one is not None:
            one.gradient = None

    def forget(self) -> None:
        """Called when a state was restored: changes since the last backward are ignored."""
        self._marks.clear()
        for one in self._optimizers.sums:
            one.gradient = None

    @property
    def _reads_values(self) -> bool:
        return self._backwards <= VALUES_READ

    def _value(self, tensor: Tensor | None) -> complex | None:
        """Return the sum of the values, or None after the first backwards.

        On a GPU there are fewer of these, as the host waits for the sum.
        """
        if tensor is None:
            return None
        most = VALUES_READ if tensor.device.type == "cpu" else VALUES_WAITED_FOR
        return None if self._backwards > most else digest(tensor)

    def _say(self, text: str) -> None:
        if self._session.is_main and text not in self._said:
            self._said.add(text)
            warn(text)


def _smallest(parameters: Sequence[Tensor]) -> Tensor | None:
    return min(parameters, key=Tensor.numel, default=None)


def _gradient_of(one: WindowSum) -> Tensor | None:
    smallest = _smallest([each for each in one.parameters() if each.grad is not None])
    return None if smallest is None else smallest.grad


def _are_renormalised(parameters: Sequence[Tensor]) -> bool:
    """Whether a forward changes a parameter, as an Embedding with ``max_norm`` does."""
    mine = set(map(id, parameters))
    tables = objects.alive(nn.Embedding, nn.EmbeddingBag)
    return any(one.max_norm is not None and id(one.weight) in mine for one in tables)
