"""``Optimizer.step``, ``Optimizer.zero_grad`` and ``LRScheduler.step`` where a listener decides whether they happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchbus._seams.ears import Ears
from torchbus._seams.optimizers.closures import Given
from torchbus._session import inventory

NONE_GIVEN = Given(Optimizer, (), {})


class Answer:
    """A listener has dealt with a step: the loop gets ``result``."""

    __slots__ = ("result",)

    def __init__(self, result: Any = None) -> None:
        self.result = result


class step:
    """The method of each optimizer class, outside torch's own step hooks: a step that is skipped fires none of them."""

    PLACE = "Optimizer.step (skipped or not)"
    EVENTS = ("step_called",)

    @staticmethod
    def install(ears: Ears) -> Callable[[], None]:
        listeners = list(ears.listeners("step_called"))
        running: set[int] = set()
        patched: dict[Any, Any] = {}
        stack = ExitStack()

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
                if id(self) in running:  # a subclass calls its parent's step
                    return original(self, *args, **kwargs)

                given = Given(type(self), args, kwargs) if args or kwargs else NONE_GIVEN

                def run(closure: Callable[..., Any] | None = None) -> Any:
                    args, kwargs = given.exchanged(closure)
                    running.add(id(self))
                    try:
                        return original(self, *args, **kwargs)
                    finally:
                        running.discard(id(self))

                for listener in listeners:
                    answer = listener(self, given.closure, run)
                    if answer is not None:
                        return answer.result
                return run(given.closure)

            patched[original] = step
            return step

        def patch(cls: type) -> None:
            owner = next(base for base in cls.__mro__ if "step" in vars(base))
            if getattr(vars(owner)["step"], "hooked", False) and vars(owner)["step"] not in patched.values():
                stack.callback(ears.replace(owner, "step", make, becomes_inert=True))

        def make_patcher(original: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
            def _patch_step_function(self: Optimizer) -> None:
                original(self)
                patch(type(self))

            return _patch_step_function

        for cls in subclasses(Optimizer):
            patch(cls)
        stack.callback(ears.replace(Optimizer, "_patch_step_function", make_patcher))
        _redirect(patched)

        def undo() -> None:
            listeners.clear()
            stack.close()
            _redirect({ours: original for original, ours in patched.items()})

        return undo


class zero_grad:
    PLACE = "Optimizer.zero_grad"
    EVENTS = ("before_zero_grad",)

    @staticmethod
    def install(ears: Ears) -> Callable[[], None]:
        listeners = ears.listeners("before_zero_grad")

        def make(original: Callable[..., None]) -> Callable[..., None]:
            def zero_grad(self: Optimizer, *args: Any, **kwargs: Any) -> None:
                cleared = False
                for listener in listeners:
                    cleared |= listener(self) is True
                if not cleared:
                    original(self, *args, **kwargs)

            return zero_grad

        return ears.replace(Optimizer, "zero_grad", make)


class scheduler:
    """Schedulers that exist when the seam is installed, and every later one that calls ``LRScheduler.step``."""

    PLACE = "LRScheduler.step"
    EVENTS = ("skip_scheduler",)

    @staticmethod
    def install(ears: Ears) -> Callable[[], None]:
        def make(original: Callable[..., None]) -> Callable[..., None]:
            def step(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
                begun = vars(self).get("_step_count", 0) > 0 or "best" in vars(self)  # the constructor steps as well
                if not (begun and ears.hook.skip_scheduler(scheduler=self)):
                    original(self, *args, **kwargs)

            return step

        stack = ExitStack()
        for cls in [LRScheduler, *subclasses(LRScheduler)]:
            if "step" in vars(cls):
                stack.callback(ears.replace(cls, "step", make))
        return stack.close


def subclasses(cls: type) -> list[type]:
    """All classes below this one, each once."""

    def below(cls: type) -> Iterator[type]:
        child: type
        for child in cls.__subclasses__():
            yield child
            yield from below(child)

    return list(dict.fromkeys(below(cls)))


def _redirect(functions: dict[Any, Any]) -> None:
    """A scheduler gives its optimizer a ``step`` of its own, which keeps the class's function that it found."""
    for optimizer in inventory.alive(Optimizer):
        for cell in getattr(vars(optimizer).get("step"), "__closure__", None) or ():
            try:
                if cell.cell_contents in functions:
                    cell.cell_contents = functions[cell.cell_contents]
            except (TypeError, ValueError):  # not hashable, or empty
                continue
