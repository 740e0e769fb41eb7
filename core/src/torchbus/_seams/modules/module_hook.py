"""A global hook on the calls of modules that torch.compile never meets.

torch.compile warns of global hooks when a compiled model is called, and compiles them in: a break in the graph, and a second graph once they
are gone. So the hook is off while a compiled model is called, and goes for good where something else, whose calls can't be heard, is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from torchbus._seams.ears import Ears

Called = Callable[[Module, Any], None]
LOADED = "torch._dynamo.eval_frame"


class ModuleHook:
    """``called(module, inputs)`` before each forward; for a compiled model, before the call of the whole."""

    def __init__(self, ears: Ears, called: Called) -> None:
        self._ears = ears
        self._called = called
        self._handle: RemovableHandle | None = register_module_forward_pre_hook(called)
        self._stack = ExitStack()
        self._stack.callback(self._take_off)
        self._stack.callback(ears.replace(torch, "compile", self._compiling, becomes_inert=True))
        self._watches = False
        if LOADED in sys.modules:
            self._watch()

    def remove(self) -> None:
        self._stack.close()
        self._called = _nothing

    def _take_off(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(*args: Any, **kwargs: Any) -> Any:  # torch's own name for it
            self._watch()
            return original(*args, **kwargs)

        return compile

    def _watch(self) -> None:
        """Loading torch's compiler takes a second: only once somebody uses it."""
        import torch._dynamo as dynamo
        from torch._dynamo.eval_frame import OptimizedModule

        callbacks: list[Any] = dynamo.callback.callback_handler.start_callbacks
        if self._compiles not in callbacks:  # torch._dynamo.reset() removes all
            callbacks.append(self._compiles)
        if not self._watches:
            self._watches = True
            self._stack.callback(self._ears.replace(OptimizedModule, "__call__", self._around, becomes_inert=True))
            self._stack.callback(lambda: callbacks.remove(self._compiles) if self._compiles in callbacks else None)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(model: Module, *args: Any, **kwargs: Any) -> Any:
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

    def _compiles(self, _: Any = None) -> None:
        """A compilation starts. Where the hook is on, this is no compiled model but a function, whose later calls can't be heard."""
        if self._handle is not None:
            self._take_off()
            for model in _called_now():
                self._called(model, ())


def _called_now() -> list[Module]:
    """The model that is called, if any: ``model.compile()`` compiles its call."""
    frame, outermost = sys._getframe(1), None
    while frame is not None:
        if frame.f_code is Module._wrapped_call_impl.__code__:
            outermost = frame.f_locals["self"]
        frame = frame.f_back  # type: ignore[assignment]
    return [] if outermost is None else [outermost]


def _nothing(module: Module, inputs: Any) -> None:
    """What is called once the hook is removed."""
