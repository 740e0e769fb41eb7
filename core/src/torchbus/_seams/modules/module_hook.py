"""A global hook on the calls of modules that torch.compile never meets.

When a compiled model is called, torch.compile warns of global hooks. It also compiles them in: they
break the graph, and their removal causes a second one. So this hook is off while a compiled model
is called. It goes for good when something else is compiled whose calls can't be heard.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType

import torch
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from torchbus._compat.cpython import current_frame
from torchbus._compat.modules import CALL, COMPILER, compiler
from torchbus._seams.ears import Ears

Called = Callable[[Module, tuple[object, ...]], None]


class ModuleHook:
    """Calls ``called(module, inputs)`` before each forward. A compiled model counts as one call."""

    def __init__(self, ears: Ears, called: Called) -> None:
        self._ears = ears
        self._called = called
        self._handle: RemovableHandle | None = register_module_forward_pre_hook(called)
        self._stack = ExitStack()
        self._stack.callback(self._take_off)
        self._stack.callback(ears.replace(torch, "compile", self._compiling, becomes_inert=True))
        self._watches = False
        if COMPILER in sys.modules:
            self._watch()

    def remove(self) -> None:
        self._stack.close()
        self._called = _nothing

    def _take_off(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _compiling(self, original: Callable[..., object]) -> Callable[..., object]:
        def compile(*args: object, **kwargs: object) -> object:  # torch's own name for it
            self._watch()
            return original(*args, **kwargs)

        return compile

    def _watch(self) -> None:
        """Watch for compilations, once torch's compiler is loaded. Loading it takes a second."""
        callbacks, compiled = compiler()
        if self._compiles not in callbacks:  # torch._dynamo.reset() removes all
            callbacks.append(self._compiles)
        if not self._watches:
            self._watches = True
            self._stack.callback(
                self._ears.replace(compiled, "__call__", self._around, becomes_inert=True)
            )
            self._stack.callback(
                lambda: callbacks.remove(self._compiles) if self._compiles in callbacks else None
            )

    def _around(self, original: Callable[..., object]) -> Callable[..., object]:
        def __call__(model: Module, *args: object, **kwargs: object) -> object:
            if self._handle is None:
                return original(model, *args, **kwargs)
            self._called(model, args)
            self._take_off()
            try:
                return original(model, *args, **kwargs)
            finally:
                if self._called is not _nothing:
                    self._handle = register_module_forward_pre_hook(self._called)

        return __call__

    def _compiles(self, _: object = None) -> None:
        """A compilation starts.

        If the hook is on, what is compiled is a function and no model. Its later calls can't be
        heard.
        """
        if self._handle is not None:
            self._take_off()
            for model in _called_now():
                self._called(model, ())


def _called_now() -> list[Module]:
    """Return the compiled model that is being called, if any: ``model.compile()`` compiles its
    call.
    """
    frame: FrameType | None = current_frame(1)
    outermost = None
    while frame is not None:
        if frame.f_code is CALL:
            outermost = frame.f_locals["self"]
        frame = frame.f_back
    return [] if outermost is None else [outermost]


def _nothing(module: Module, inputs: object) -> None:
    """Takes the hook's place after its removal."""
