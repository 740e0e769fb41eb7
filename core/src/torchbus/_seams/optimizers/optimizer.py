"""``Optimizer.add_param_group``, ``Optimizer.__setstate__`` and ``Optimizer.step`` (torch's global step hooks)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torchbus._seams.ears import Ears
from torchbus._seams.optimizers.closures import Closure, Given


class parameters:
    """The constructor of every optimizer calls ``add_param_group`` for each of its groups; one that ``torch.load`` or ``copy.deepcopy`` makes
    gets them by ``__setstate__``."""

    PLACE = "Optimizer.add_param_group, __setstate__"
    EVENTS = ("parameters_added",)

    @staticmethod
    def install(ears: Ears) -> Callable[[], None]:
        added = ears.replace(Optimizer, "add_param_group", _adding(ears))
        copied = ears.replace(Optimizer, "__setstate__", _copying(ears))

        def undo() -> None:
            copied()
            added()

        return undo


def _adding(ears: Ears) -> Callable[[Any], Any]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def add_param_group(self: Optimizer, param_group: dict[str, Any]) -> None:
            original(self, param_group)
            ears.hook.parameters_added(optimizer=self, parameters=list(self.param_groups[-1]["params"]))

        return add_param_group

    return make


def _copying(ears: Ears) -> Callable[[Any], Any]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def __setstate__(self: Optimizer, state: dict[str, Any]) -> None:
            made = "param_groups" not in vars(self)  # else load_state_dict calls it
            original(self, state)
            if made:
                given = [parameter for group in self.param_groups for parameter in group["params"]]
                ears.hook.parameters_added(optimizer=self, parameters=given)

        return __setstate__

    return make


class step:
    """Every optimizer's step, through torch's own global hooks."""

    PLACE = "Optimizer.step"
    EVENTS = ("before_optimizer_step", "after_closure", "after_optimizer_step")

    @staticmethod
    def install(ears: Ears) -> Callable[[], None]:
        before, evaluated, after = (ears.listeners(event) for event in step.EVENTS)
        running: dict[int, int] = {}

        def announced(optimizer: Optimizer, closure: Closure) -> Closure:
            @functools.wraps(closure)
            def run(*args: Any, **kwargs: Any) -> Any:
                result = closure(*args, **kwargs)
                for listener in evaluated:
                    listener(optimizer)
                return result

            return run

        def pre(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
            wrapper = sys._getframe(1)
            if id(optimizer) in running and _is_above(wrapper, running[id(optimizer)]):
                return None  # a subclass calls its parent's step
            running[id(optimizer)] = id(wrapper)
            given = Given(type(optimizer), args[1:], kwargs) if len(args) > 1 or kwargs else None
            closure = None if given is None else given.closure
            for listener in before:
                listener(optimizer, closure)
            if given is None or given.closure is None or not evaluated:
                return None
            args, kwargs = given.exchanged(announced(optimizer, given.closure))
            return (optimizer, *args), kwargs

        def post(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            wrapper = id(sys._getframe(1))
            if running.get(id(optimizer), wrapper) != wrapper:
                return
            running.pop(id(optimizer), None)  # not there where the seam was installed inside this step
            for listener in after:
                listener(optimizer)

        handles = [register_optimizer_step_pre_hook(pre), register_optimizer_step_post_hook(post)]

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo


def _is_above(frame: FrameType, outer: int) -> bool:
    """Whether a step that began before is still running; one that has raised is not."""
    above = frame.f_back
    while above is not None and not (id(above) == outer and above.f_code is frame.f_code):
        above = above.f_back
    return above is not None
