"""Stage 3 gathers a layer's parameters in its forward: all ranks have to be in that forward."""

from __future__ import annotations

from torch.nn import Module
from torch.utils.hooks import RemovableHandle
from torchbus.plugin import Context

from torchbus_deepspeed._compat import zero


class Waits:
    """Tells the guard in which layer's forward this rank waits.

    Made before DeepSpeed's hooks are put into the model. ``end`` is called once they are there.
    """

    def __init__(self, session: Context, model: Module) -> None:
        assert session.job is not None
        self._job = session.job
        self._named = [
            (name or type(model).__name__, module)
            for name, module in model.named_modules()
            if zero.own_parameters(module)
        ]
        self._handles: list[RemovableHandle] = []
        for name, module in self._named:
            self._begin(f"the forward of {name}", module)

    def _begin(self, what: str, module: Module) -> None:
        def begin(module: Module, inputs: object) -> None:
            self._job.wait_in(what)

        self._handles.append(module.register_forward_pre_hook(begin))

    def end(self) -> None:
        """The layer has its parameters from here on."""

        def go_on(module: Module, inputs: object) -> None:
            self._job.go_on()

        for _, module in self._named:
            self._handles.append(module.register_forward_pre_hook(go_on))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
