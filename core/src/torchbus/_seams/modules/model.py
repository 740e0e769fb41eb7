"""A module's first forward, through torch's global module hook."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import chain
from typing import Any

from torch._guards import detect_fake_mode
from torch.nn import Module
from torch.nn.parameter import is_lazy

from torchbus._seams.ears import Ears
from torchbus._seams.modules.module_hook import ModuleHook

PLACE = "first forward of each module"
EVENTS = ("model_found",)


def install(ears: Ears) -> Callable[[], None]:
    """The hook costs about a microsecond per module call: it goes once the models are known (``Seams.retire``)."""
    known: dict[int, weakref.ref[Module]] = {}  # no longer than the loop keeps them: a loop may make a model per round

    def remembered(module: Module) -> weakref.ref[Module]:
        key = id(module)
        return weakref.ref(module, lambda _: known.pop(key, None))

    def first_call(module: Module, inputs: Any) -> None:
        if id(module) in known or detect_fake_mode() is not None:  # torch.compile of an older torch calls its copies
            return
        waits = any(map(is_lazy, chain(module.parameters(), module.buffers())))  # for this call to give them their shapes
        known.update((id(part), remembered(part)) for part in module.modules() if not (waits and part is module))
        if not waits:
            ears.hook.model_found(model=module, calling=True)

    return ModuleHook(ears, first_call).remove
