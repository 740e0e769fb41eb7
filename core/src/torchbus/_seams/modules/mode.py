"""``Module.train``, which ``Module.eval`` calls."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn import Module

from torchbus._seams.ears import Ears, emits


@emits("Module.train", "mode_changed")
def train_mode(ears: Ears) -> Callable[[], None]:
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
                ears.hook.mode_changed(model=self, training=mode)
            return result

        return train

    return ears.replace(Module, "train", make)
