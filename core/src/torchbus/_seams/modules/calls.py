"""Every call of every module, through torch's global module hook, for a few steps."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn import Module

from torchbus._seams.ears import Ears
from torchbus._seams.modules.module_hook import ModuleHook

PLACE = "forward of every module"
EVENTS = ("module_called",)


def install(ears: Ears) -> Callable[[], None]:
    def called(module: Module, inputs: tuple[object, ...]) -> None:
        ears.hook.module_called(module=module, inputs=inputs)

    return ModuleHook(ears, called).remove
