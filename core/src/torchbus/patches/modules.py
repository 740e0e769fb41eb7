"""Patches of ``Module``: the first calls of models, every call, and train or eval mode."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from types import FrameType, MethodType

import torch
from torch.nn import Module, Parameter
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from torchbus.compat.python import current_frame
from torchbus.compat.torch_names import (
    CALL,
    COMPILER,
    compiler,
    detect_fake_mode,
    outside_transforms,
)
from torchbus.patches.patching import MISSING, EventEmitter, emits, replace

Called = Callable[[Module, tuple[object, ...]], None]


class ModuleHook:
    """Calls ``called(module, inputs)`` before each forward. A compiled model counts as one call."""

    def __init__(self, called: Called) -> None:
        self._called = called
        self._handle: RemovableHandle | None = register_module_forward_pre_hook(self._run)
        self._stack = ExitStack()
        self._stack.callback(self._take_off)
        self._stack.callback(replace(torch, "compile", self._compiling, becomes_inert=True))
        self._watches = False
        if COMPILER in sys.modules:
            self._watch()

    def remove(self) -> None:
        self._stack.close()
        self._called = _no_op

    def _run(self, module: Module, inputs: tuple[object, ...]) -> None:
        # a compilation that starts in another hook of this call removes this hook too late
        if self._handle is not None and not torch.jit.is_tracing():
            self._called(module, inputs)

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
            self._stack.callback(replace(compiled, "__call__", self._around, becomes_inert=True))
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
                if self._called is not _no_op:
                    self._handle = register_module_forward_pre_hook(self._run)

        return __call__

    def _compiles(self, _: object = None) -> None:
        """Called when a compilation starts.

        If the hook is on, torch compiles a function that is not a compiled model's call. Later
        calls in it can't be detected, so the hook is removed, and the running model reported.
        """
        if self._handle is not None:
            self._take_off()
            for model in _called_now():
                self._called(model, ())


def _called_now() -> list[Module]:
    """Return the compiled model that is being called: ``model.compile()`` compiles its call."""
    frame: FrameType | None = current_frame(1)
    outermost = None
    while frame is not None:
        if frame.f_code is CALL:
            outermost = frame.f_locals["self"]
        frame = frame.f_back
    return [] if outermost is None else [outermost]


def _no_op(module: Module, inputs: object) -> None:
    """Takes the hook's place after its removal."""


@emits("forward of every module", "module_called")
def every_forward(emitter: EventEmitter) -> Callable[[], None]:
    def called(module: Module, inputs: tuple[object, ...]) -> None:
        emitter.hook.module_called(module=module, inputs=inputs)

    return ModuleHook(called).remove


@emits("first forward of each module", "model_found")
def first_forward(emitter: EventEmitter) -> Callable[[], None]:
    """Detect first calls until the models are known (``Seams.retire``).

    The hook costs about a microsecond per module call.
    """
    # weak references, because a loop may make a model per round
    known: dict[int, weakref.ref[Module]] = {}

    def remembered(module: Module) -> weakref.ref[Module]:
        key = id(module)
        return weakref.ref(module, lambda _: known.pop(key, None))

    def first_call(module: Module, inputs: object) -> None:
        # torch.compile of an older torch calls copies of the model
        if id(module) in known or detect_fake_mode() is not None or _is_lent(module):
            return
        # this call will give lazy parameters their shapes
        waits = any(map(is_lazy, chain(module.parameters(), module.buffers())))
        known.update(
            (id(part), remembered(part))
            for part in module.modules()
            if not (waits and part is module)
        )
        if not waits:
            with outside_transforms():
                emitter.hook.model_found(model=module, calling=True)

    return ModuleHook(first_call).remove


def _is_lent(module: Module) -> bool:
    """Whether ``torch.func.functional_call`` has put other tensors in the place of parameters."""
    return not all(isinstance(one, Parameter) for one in module.parameters())


@emits("Module.train", "mode_changed")
def train_mode(emitter: EventEmitter) -> Callable[[], None]:
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
                emitter.hook.mode_changed(model=self, training=mode)
            return result

        return train

    return replace(Module, "train", make)


Around = Callable[..., object]


class Surround:
    """Calls ``around(model, forward, args, kwargs)`` instead of the ``forward`` of added models.

    It replaces the method of the model's class, and calls the original for other instances. So the
    model itself stays as it was, also for pickling and copying. If ``forward`` is an attribute of
    the object (a compiled model), that is replaced. If ``traced``, torch.compile may compile
    ``around`` with the model. Otherwise, a compiled ``forward`` runs without ``around``.
    """

    def __init__(self, around: Around, traced: bool = True) -> None:
        self._around = around
        self._traced = traced
        self._models: dict[int, type | None] = {}
        """By model, the class whose ``forward`` is replaced, or None if it is the object's."""
        self._replaced: set[object] = set()
        self._stack = ExitStack()

    def add(self, model: Module) -> None:
        """Surround this model from its next call on."""
        if model in self:
            return
        weakref.finalize(model, self._models.pop, id(model), None)
        if "forward" in vars(model):
            self._models[id(model)] = None
            self._replace_local(model)
            return
        owner = next(base for base in type(model).__mro__ if "forward" in vars(base))
        self._models[id(model)] = owner
        if owner not in self._replaced:
            self._replaced.add(owner)
            make = functools.partial(self._replacing, owner)
            self._stack.callback(replace(owner, "forward", make))

    def __contains__(self, model: Module) -> bool:
        return id(model) in self._models

    def close(self) -> None:
        """Restore every class and model."""
        self._stack.close()
        self._models.clear()
        self._replaced.clear()

    def _replacing(
        self, owner: type | None, original: Callable[..., object]
    ) -> Callable[..., object]:
        def forward(model: Module, *args: object, **kwargs: object) -> object:
            is_left_alone = not self._traced and torch.compiler.is_compiling()
            # a subclass calls its parent's forward
            if is_left_alone or self._models.get(id(model), MISSING) is not owner:
                return original(model, *args, **kwargs)
            return self._around(model, functools.partial(original, model), args, kwargs)

        return forward

    def _replace_local(self, model: Module) -> None:
        local = vars(model)["forward"]
        method = getattr(local, "__func__", None)
        if method is not None and method in self._replaced:  # a copy of a model that was added
            return
        reference = weakref.ref(model)

        def forward(*args: object, **kwargs: object) -> object:
            return self._around(reference(), local, args, kwargs)

        ours: Callable[..., object] = forward
        if method is not None and local.__self__ is model:  # copy.deepcopy binds it to the copy
            of_any = self._replacing(None, method)
            self._replaced.add(of_any)
            ours = MethodType(of_any, model)

        def undo() -> None:
            found = reference()
            if found is not None and vars(found).get("forward") is ours:
                vars(found)["forward"] = local

        vars(model)["forward"] = ours
        self._stack.callback(undo)
