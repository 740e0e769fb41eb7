"""A module's first forward, through torch's global module hook."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import chain

from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy

from torchbus._compat.autograd import outside_transforms
from torchbus._compat.modules import detect_fake_mode
from torchbus._seams.ears import Ears, emits
from torchbus._seams.modules.module_hook import ModuleHook


@emits("first forward of each module", "model_found")
def first_forward(ears: Ears) -> Callable[[], None]:
    """Hear first calls until the models are known (``Seams.retire``).

    The hook costs about a microsecond per module call.
    """
    # weakly: a loop may make a model per round
    known: dict[int, weakref.ref[Module]] = {}

    def remembered(module: Module) -> weakref.ref[Module]:
        key = id(module)
        return weakref.ref(module, lambda _: known.pop(key, None))

    def first_call(module: Module, inputs: object) -> None:
        # torch.compile of an older torch calls its copies
        if id(module) in known or detect_fake_mode() is not None or _is_lent(module):
            return
        # this call will give them their shapes
        waits = any(map(is_lazy, chain(module.parameters(), module.buffers())))
        known.update(
            (id(part), remembered(part))
            for part in module.modules()
            if not (waits and part is module)
        )
        if not waits:
            with outside_transforms():
                ears.hook.model_found(model=module, calling=True)

    return ModuleHook(ears, first_call).remove


def _is_lent(module: Module) -> bool:
    """Whether ``torch.func.functional_call`` has put other tensors in the place of parameters."""
    return not all(isinstance(one, Parameter) for one in module.parameters())
