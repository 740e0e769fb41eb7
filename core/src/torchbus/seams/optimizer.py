"""``Optimizer.add_param_group``, ``Optimizer.__setstate__`` and ``Optimizer.step`` (torch's global step hooks)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torchbus.bus import Bus
from torchbus.seams._patch import replace


class parameters:
    """The constructor of every optimizer calls ``add_param_group`` for each of its groups; one that ``torch.load`` or ``copy.deepcopy`` makes
    gets them by ``__setstate__``."""

    PLACE = "Optimizer.add_param_group, __setstate__"
    EVENTS = ("parameters_added",)

    @staticmethod
    def install(bus: Bus) -> Callable[[], None]:
        added = replace(Optimizer, "add_param_group", _adding(bus))
        copied = replace(Optimizer, "__setstate__", _copying(bus))

        def undo() -> None:
            copied()
            added()

        return undo


def _adding(bus: Bus) -> Callable[[Any], Any]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def add_param_group(self: Optimizer, param_group: dict[str, Any]) -> None:
            original(self, param_group)
            bus.hook.parameters_added(optimizer=self, parameters=list(self.param_groups[-1]["params"]))

        return add_param_group

    return make


def _copying(bus: Bus) -> Callable[[Any], Any]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def __setstate__(self: Optimizer, state: dict[str, Any]) -> None:
            made = "param_groups" not in vars(self)  # else load_state_dict calls it
            original(self, state)
            if made:
                given = [parameter for group in self.param_groups for parameter in group["params"]]
                bus.hook.parameters_added(optimizer=self, parameters=given)

        return __setstate__

    return make


class step:
    """Every optimizer's step, through torch's own global hooks."""

    PLACE = "Optimizer.step"
    EVENTS = ("before_optimizer_step", "after_closure", "after_optimizer_step")

    @staticmethod
    def install(bus: Bus) -> Callable[[], None]:
        before, evaluated, after = (bus.listeners(event) for event in step.EVENTS)

        def announced(optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
            def run() -> Any:
                result = closure()
                for listener in evaluated:
                    listener(optimizer)
                return result

            return run

        def pre(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            for listener in before:
                listener(optimizer, closure)
            if closure is None or not evaluated:
                return None
            return (optimizer, announced(optimizer, closure), *args[2:]), {key: kwargs[key] for key in kwargs if key != "closure"}

        def post(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for listener in after:
                listener(optimizer)

        handles = []
        if before or evaluated:
            handles.append(register_optimizer_step_pre_hook(pre))
        if after:
            handles.append(register_optimizer_step_post_hook(post))

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo
