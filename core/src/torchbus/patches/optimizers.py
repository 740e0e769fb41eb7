"""Patches of ``Optimizer`` and of learning rate schedulers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchbus.compat.python import current_frame
from torchbus.objects import is_marked
from torchbus.patches.patching import EventEmitter, emits, replace

Closure = Callable[..., object]
NAME = "closure"


class StepArguments:
    """The arguments of one call of ``step``, without the optimizer.

    ``closure`` is the closure among them, or None.
    """

    __slots__ = ("_args", "_kwargs", "_place", "closure")

    def __init__(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._args, self._kwargs = args, kwargs
        self._place = _place(cls, args, kwargs) if args or kwargs else None
        given: Any = args if isinstance(self._place, int) else kwargs
        self.closure: Closure | None = None if self._place is None else given[self._place]

    def exchanged(self, closure: Closure | None) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments with another closure in the place of the loop's.

        If the loop passed no closure and ``closure`` is None, the arguments stay unchanged.
        """
        if self._place is None:
            return self._args, self._kwargs if closure is None else self._kwargs | {NAME: closure}
        if isinstance(self._place, str):
            return self._args, self._kwargs | {self._place: closure}
        return (*self._args[: self._place], closure, *self._args[self._place + 1 :]), self._kwargs


def _place(cls: type, args: tuple[object, ...], kwargs: dict[str, object]) -> int | str | None:
    """Return where the closure is: the argument of that name, else the first function.

    Only a callable counts.
    """
    if callable(kwargs.get(NAME)):
        return NAME
    declared = _declared(cls)
    if declared is None:
        functions = (i for i, one in enumerate(args) if callable(one))
        return next((i for i in functions if not isinstance(args[i], Module | type)), None)
    return declared if 0 <= declared < len(args) and callable(args[declared]) else None


@functools.lru_cache(maxsize=64)
def _declared(cls: Any) -> int | None:
    """Return the position of the parameter ``closure`` after ``self``.

    It is -1 if ``step`` takes it by keyword only, and None if there is no such parameter.
    """
    try:
        parameters = list(inspect.signature(cls.step).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    places = [
        -1 if one.kind is one.KEYWORD_ONLY else index
        for index, one in enumerate(parameters)
        if one.name == NAME
    ]
    return places[0] if places else None


@emits("Optimizer.add_param_group, __setstate__", "parameters_added")
def optimizer_parameters(emitter: EventEmitter) -> Callable[[], None]:
    """Patch ``add_param_group``, which every constructor calls for each group, and
    ``__setstate__``, by which ``torch.load`` and ``copy.deepcopy`` fill a new optimizer.
    """

    def announce(optimizer: Optimizer, parameters: list[Tensor]) -> None:
        if not is_marked(optimizer):
            emitter.hook.parameters_added(optimizer=optimizer, parameters=parameters)

    def adding(original: Callable[..., None]) -> Callable[..., None]:
        def add_param_group(self: Optimizer, param_group: dict[str, object]) -> None:
            original(self, param_group)
            announce(self, list(self.param_groups[-1]["params"]))

        return add_param_group

    def copying(original: Callable[..., None]) -> Callable[..., None]:
        def __setstate__(self: Optimizer, state: dict[str, object]) -> None:
            made = "param_groups" not in vars(self)  # else load_state_dict calls it
            original(self, state)
            if made:
                announce(self, [one for group in self.param_groups for one in group["params"]])

        return __setstate__

    undo = ExitStack()
    undo.callback(replace(Optimizer, "add_param_group", adding))
    undo.callback(replace(Optimizer, "__setstate__", copying))
    return undo.close


STEP_EVENTS = ("before_optimizer_step", "gradients_ready", "after_optimizer_step")


@emits("Optimizer.step", *STEP_EVENTS)
def optimizer_steps(emitter: EventEmitter) -> Callable[[], None]:
    """Emit events of every optimizer's step, through torch's own global hooks."""
    hooks = StepHooks(emitter)
    undo = ExitStack()
    undo.callback(register_optimizer_step_pre_hook(hooks.before).remove)
    undo.callback(register_optimizer_step_post_hook(hooks.after).remove)
    return undo.close


class StepHooks:
    """Hooks that torch calls around every step, also around a parent class's step."""

    def __init__(self, emitter: EventEmitter) -> None:
        self._before, self._ready, self._after = map(emitter.listeners, STEP_EVENTS)
        self._running: dict[int, int] = {}

    def before(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]] | None:
        wrapper, running, key = current_frame(1), self._running, id(optimizer)
        if key in running and _is_above(wrapper, running[key]):
            return None  # a subclass calls its parent's step
        if is_marked(optimizer):
            return None
        running[key] = id(wrapper)
        given = (
            StepArguments(type(optimizer), args[1:], kwargs) if len(args) > 1 or kwargs else None
        )
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
        wrapper, key = id(current_frame(1)), id(optimizer)
        if self._running.get(key, wrapper) != wrapper or is_marked(optimizer):
            return
        # missing if the patch was installed inside this step
        self._running.pop(key, None)
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
    """Whether the earlier step of frame ``outer`` still runs. A step that has raised does not."""
    above = frame.f_back
    while above is not None and not (id(above) == outer and above.f_code is frame.f_code):
        above = above.f_back
    return above is not None


@emits("ReduceLROnPlateau.step", "scheduler_metric")
def plateau_step(emitter: EventEmitter) -> Callable[[], None]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def step(self: ReduceLROnPlateau, metrics: object, *args: object, **kwargs: object) -> None:
            replaced = emitter.hook.scheduler_metric(metric=metrics)
            original(self, metrics if replaced is None else replaced, *args, **kwargs)

        return step

    return replace(ReduceLROnPlateau, "step", make)
