"""Which models, optimizers, loaders and tensors a session may act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from torchbus._session import inventory
from torchbus.errors import UsageError

if TYPE_CHECKING:
    from types import FrameType

    from torchbus._bus.bus import Bus


class Adopted:
    """What the script has given to ``adopt``. With ``capture``, that is everything."""

    def __init__(self, bus: Bus, capture: bool) -> None:
        self._bus = bus
        self._capture = capture
        self._things: dict[int, object] = {}

    def includes(self, thing: object) -> bool:
        return self._capture or id(thing) in self._things

    def add(self, thing: object) -> None:
        """Adopt an object. Raises UsageError if it is of another kind."""
        self._things[id(thing)] = thing
        self._announce(thing)

    def add_named_in(self, frame: FrameType) -> None:
        """With ``capture``, adopt what the caller's variables name."""
        for thing in (
            [thing for kind in inventory.named_in(frame) for thing in kind] if self._capture else []
        ):
            self._announce(thing)

    def clear(self) -> None:
        self._things.clear()

    def _announce(self, thing: object) -> None:
        if isinstance(thing, Module):
            self._bus.hook.model_found(model=thing, calling=False)
        elif isinstance(thing, Optimizer):
            for group in thing.param_groups:
                self._bus.hook.parameters_added(optimizer=thing, parameters=list(group["params"]))
        elif isinstance(thing, Tensor):
            self._bus.hook.parameters_added(optimizer=None, parameters=[thing])
        elif not isinstance(thing, DataLoader):
            raise UsageError(
                f"adopt({type(thing).__name__}): pass modules, optimizers, DataLoaders or tensors"
            )
