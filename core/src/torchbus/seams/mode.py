"""``Module.train``, which ``Module.eval`` calls."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn import Module

from torchbus.bus import Bus
from torchbus.seams._patch import replace

PLACE = "Module.train"
EVENTS = ("mode_changed",)


def install(bus: Bus) -> Callable[[], None]:
    depth = 0

    def make(original: Callable[[Module, bool], Module]) -> Callable[[Module, bool], Module]:
        def train(self: Module, mode: bool = True) -> Module:
            nonlocal depth
            depth += 1
            try:
                result = original(self, mode)
            finally:
                depth -= 1
            if not depth:
                bus.hook.mode_changed(model=self, training=mode)
            return result

        return train

    return replace(Module, "train", make)
