"""Patches of ``step`` (optimizers, schedulers) and ``zero_grad``, which a listener may skip."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchbus.compat import torch_names
from torchbus.objects import alive, is_marked
from torchbus.patches.optimizers import StepArguments
from torchbus.patches.patching import EventEmitter, emits, replace, subclasses

NONE_GIVEN = StepArguments(Optimizer, (), {})


@dataclass(slots=True)
class Answer:
    """The answer of a listener that has handled a call of ``step``. The loop gets ``result``."""

    result: object = None


STEP_EVENTS = ("step_called", "step_failed")
CLEARING_EVENTS = ("before_zero_grad", "gradients_cleared")


@emits("Optimizer.step (skipped or not)", *STEP_EVENTS)
def step_methods(emitter: EventEmitter) -> Callable[[], None]:
    """Patch ``step`` of each optimizer class, outside torch's own step hooks.

    A skipped step runs none of these hooks. If a hook raises, no later one runs.
    """
    return StepMethods(emitter).install()


Method = Callable[..., object]


class StepMethods:
    """Replaces ``step`` in all optimizer classes, existing ones and later ones."""

    def __init__(self, emitter: EventEmitter) -> None:
        self._listeners, self._failed = map(emitter.listeners, STEP_EVENTS)
        self._running: set[int] = set()
        self._patched: dict[object, object] = {}
        self._undo = ExitStack()

    def install(self) -> Callable[[], None]:
        """Patch the classes. Return the function that undoes it."""
        for cls in subclasses(Optimizer):
            self._patch(cls)
        self._undo.callback(replace(Optimizer, torch_names.PATCH_STEP, self._patcher))
        _redirect(self._patched)
        return self._remove

    def _remove(self) -> None:
        self._undo.close()
        _redirect({ours: original for original, ours in self._patched.items()})

    def _patch(self, cls: type) -> None:
        owner = next(base for base in cls.__mro__ if "step" in vars(base))
        method = vars(owner)["step"]
        if torch_names.is_hooked(method) and method not in self._patched.values():
            undo = replace(owner, "step", self._wrap, becomes_inert=True)
            self._undo.callback(undo)

    def _patcher(self, original: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
        """Patch classes as torch hooks them: when the first object is made."""

        def _patch_step_function(optimizer: Optimizer) -> None:
            original(optimizer)
            torch_names.require_hooked(type(optimizer))
            self._patch(type(optimizer))

        return _patch_step_function

    def _wrap(self, original: Method) -> Method:
        running, listeners = self._running, self._listeners

        def step(optimizer: Optimizer, *args: object, **kwargs: object) -> object:
            # a subclass calls its parent's step, or a plugin its own optimizer
            if id(optimizer) in running or is_marked(optimizer):
                return original(optimizer, *args, **kwargs)
            given = StepArguments(type(optimizer), args, kwargs) if args or kwargs else NONE_GIVEN

            def run(closure: Method | None = None) -> object:
                return self._run(original, optimizer, given.exchanged(closure))

            for listener in listeners.now:
                answer = listener(optimizer, given.closure, run)
                if answer is not None:
                    return answer.result
            return run(given.closure)

        self._patched[original] = step
        return step

    def _run(
        self,
        original: Method,
        optimizer: Optimizer,
        arguments: tuple[tuple[object, ...], dict[str, object]],
    ) -> object:
        args, kwargs = arguments
        self._running.add(id(optimizer))
        try:
            return original(optimizer, *args, **kwargs)
        except BaseException:
            for listener in self._failed.now:
                listener(optimizer)
            raise
        finally:
            self._running.discard(id(optimizer))


@emits("Optimizer.zero_grad", *CLEARING_EVENTS)
def clearing_gradients(emitter: EventEmitter) -> Callable[[], None]:
    """Patch ``zero_grad``, which a plugin may skip."""
    before, after = map(emitter.listeners, CLEARING_EVENTS)

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def zero_grad(self: Optimizer, *args: object, **kwargs: object) -> None:
            if is_marked(self):
                return original(self, *args, **kwargs)
            skipped = False
            for listener in before.now:
                skipped |= listener(self) is True
            if not skipped:
                original(self, *args, **kwargs)
            for listener in after.now:
                listener(self, skipped)

        return zero_grad

    return replace(Optimizer, "zero_grad", make)


@emits("LRScheduler.step", "skip_scheduler")
def scheduler_steps(emitter: EventEmitter) -> Callable[[], None]:
    """Patch existing schedulers, and later ones that call ``LRScheduler.step``."""
    running: set[int] = set()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def step(self: LRScheduler, *args: object, **kwargs: object) -> None:
            if id(self) in running:  # a subclass calls its parent's step
                return original(self, *args, **kwargs)
            if torch_names.has_begun(self) and emitter.hook.skip_scheduler(scheduler=self):
                return None
            running.add(id(self))
            try:
                return original(self, *args, **kwargs)
            finally:
                running.discard(id(self))

        return step

    torch_names.require_step_count()
    stack = ExitStack()
    for cls in [LRScheduler, *subclasses(LRScheduler)]:
        if "step" in vars(cls):
            stack.callback(replace(cls, "step", make))
    return stack.close


def _redirect(functions: dict[object, object]) -> None:
    """Exchange class functions inside the ``step`` that a scheduler gives to its optimizer.

    That ``step`` keeps the function that it found in the class.
    """
    for optimizer in alive(Optimizer):
        for cell in torch_names.cells_of_local_step(optimizer):
            with suppress(TypeError):  # not hashable
                if cell.cell_contents in functions:
                    cell.cell_contents = functions[cell.cell_contents]
