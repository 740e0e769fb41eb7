"""Find ``zero_grad(set_to_none=False)`` in the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.nn import Module
from torch.optim import Optimizer
from torchbus.runtime.steps import Steps

from torchbus_gpu.lint.replacing import replaced
from torchbus_gpu.lint.sites import Sites

STEPS, PART = 3, 0.1


class RetainedGradients:
    """Warns of a line that calls it in three steps, for an optimizer or a module."""

    def __init__(self, steps: Steps) -> None:
        self._sites = Sites(steps, _message, STEPS, PART)

    @contextmanager
    def installed(self) -> Iterator[None]:
        with (
            replaced(Optimizer, "zero_grad", self._noticing),
            replaced(Module, "zero_grad", self._noticing),
        ):
            yield

    def _noticing(self, original: Callable[..., None]) -> Callable[..., None]:
        def zero_grad(self_: object, set_to_none: bool = True) -> None:
            if not set_to_none:
                self._sites.hit("zero_grad(set_to_none=False)")
            original(self_, set_to_none)

        return zero_grad


def _message(what: str) -> str:
    return (
        f"{what} in the loop writes zeros into every gradient and keeps its memory: leave"
        " set_to_none out, unless the loop needs zeros for None"
    )
