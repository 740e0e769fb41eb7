"""During a step, the optimizer sees only the parameters of its rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import Unsupported

from torchbus_sharded._compat.tensors import version

HALF_DONE = (
    "{}.step() has raised after it had changed parameters. Under strategy='ddp_sharded' each rank"
    " steps other parameters, so nobody can tell which of them one process would have changed. Let"
    " the error end the run, or use strategy='ddp'"
)


class HiddenParameters:
    """Takes the other ranks' parameters out of the groups of one optimizer, and puts them back.

    A step may call the step of another optimizer that shares its groups (Lookahead). Then the inner
    one finds them hidden, and puts them back.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[dict[str, Any], list[Tensor]]] = []
        self._versions: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    def hide(self, optimizer: Optimizer, is_own: Iterable[bool]) -> None:
        """Leave only the parameters that ``is_own`` says, one bool for each."""
        own = iter(is_own)
        self._groups = [(group, group["params"]) for group in optimizer.param_groups]
        for group, parameters in self._groups:
            group["params"] = [parameter for parameter in parameters if next(own)]
        self._versions = self._versions_now()

    def show(self) -> None:
        """Put all parameters back."""
        for group, parameters in self._groups:
            group["params"] = parameters
        self._groups = []

    def show_after_error(self, optimizer: Optimizer) -> None:
        """Raise Unsupported if the step has got so far that it changed a parameter."""
        changed = self._versions != self._versions_now()
        self.show()
        if changed:
            raise Unsupported(HALF_DONE.format(type(optimizer).__name__))

    def _versions_now(self) -> list[int]:
        return [version(one) for group, _ in self._groups for one in group["params"]]
