"""Every call of every module, through torch's global module hook, for a few steps."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn import Module

from torchbus._seams.ears import Ears, emits
from torchbus._seams.modules.module_hook import ModuleHook


@emits("forward of every module", "module_called")
def every_forward(ears: Ears) -> Callable[[], None]:
    def called(module: Module, inputs: tuple[object, ...]) -> None:
        ears.hook.module_called(module=module, inputs=inputs)

    return ModuleHook(ears, called).remove
