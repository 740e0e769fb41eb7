"""``Optimizer.add_param_group``, ``__setstate__`` and ``step`` (torch's global step hooks)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchbus._bus.listeners import Listeners
from torchbus._compat.cpython import current_frame
from torchbus._seams.ears import Ears, emits
from torchbus._seams.internal import is_marked
from torchbus._seams.optimizers.closures import Closure, Given


@emits("Optimizer.add_param_group, __setstate__", "parameters_added")
def optimizer_parameters(ears: Ears) -> Callable[[], None]:
    """Every optimizer's constructor calls ``add_param_group`` for each of its groups. One that
    ``torch.load`` or ``copy.deepcopy`` makes gets them by ``__setstate__``.
    """
    added = ears.replace(Optimizer, "add_param_group", _adding(ears))
    copied = ears.replace(Optimizer, "__setstate__", _copying(ears))

    def undo() -> None:
        copied()
        added()

    return undo


def _adding(ears: Ears) -> Callable[[Any], object]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def add_param_group(self: Optimizer, param_group: dict[str, object]) -> None:
            original(self, param_group)
            if not is_marked(self):
                added = list(self.param_groups[-1]["params"])
                ears.hook.parameters_added(optimizer=self, parameters=added)

        return add_param_group

    return make


def _copying(ears: Ears) -> Callable[[Any], object]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def __setstate__(self: Optimizer, state: dict[str, object]) -> None:
            made = "param_groups" not in vars(self)  # else load_state_dict calls it
            original(self, state)
            if made and not is_marked(self):
                given = [parameter for group in self.param_groups for parameter in group["params"]]
                ears.hook.parameters_added(optimizer=self, parameters=given)

        return __setstate__

    return make


STEP_EVENTS = ("before_optimizer_step", "gradients_ready", "after_optimizer_step")


@emits("Optimizer.step", *STEP_EVENTS)
def optimizer_steps(ears: Ears) -> Callable[[], None]:
    """Every optimizer's step, through torch's own global hooks."""
    hooks = StepHooks(*(ears.listeners(event) for event in STEP_EVENTS))
    before = register_optimizer_step_pre_hook(hooks.before)
    after = register_optimizer_step_post_hook(hooks.after)

    def undo() -> None:
        before.remove()
        after.remove()

    return undo


class StepHooks:
    """Torch calls these around every step, also around that of a parent class."""

    def __init__(self, before: Listeners, ready: Listeners, after: Listeners) -> None:
        self._before, self._ready, self._after = before, ready, after
        self._running: dict[int, int] = {}

    def before(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]] | None:
        wrapper, running = current_frame(1), self._running
        if id(optimizer) in running and _is_above(wrapper, running[id(optimizer)]):
            return None  # a subclass calls its parent's step
        if is_marked(optimizer):
            return None
        running[id(optimizer)] = id(wrapper)
        given = Given(type(optimizer), args[1:], kwargs) if len(args) > 1 or kwargs else None
        closure = None if given is None else given.closure
        for listener in self._before.now:
            listener(optimizer, closure)
        if given is None or given.closure is None:
            for listener in self._ready.now:
                listener(optimizer, None)
            return None
        if not self._ready.now:
            return None
        args, kwargs = given.exchanged(self._announced(optimizer, given.closure))
        return (optimizer, *args), kwargs

    def after(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        wrapper = id(current_frame(1))
        if self._running.get(id(optimizer), wrapper) != wrapper or is_marked(optimizer):
            return
        # missing if the seam was installed inside this step
        self._running.pop(id(optimizer), None)
        for listener in self._after.now:
            listener(optimizer)

    def _announced(self, optimizer: Optimizer, closure: Closure) -> Closure:
        @functools.wraps(closure)
        def run(*args: object, **kwargs: object) -> object:
            result = closure(*args, **kwargs)
            for listener in self._ready.now:
                listener(optimizer, closure)
            return result

        return run


def _is_above(frame: FrameType, outer: int) -> bool:
    """Whether a step that began before is still running. One that has raised is not."""
    above = frame.f_back
    while above is not None and not (id(above) == outer and above.f_code is frame.f_code):
        above = above.f_back
    return above is not None
