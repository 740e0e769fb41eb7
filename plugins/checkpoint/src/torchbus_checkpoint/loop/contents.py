"""What a loop is made of: its models, optimizers, schedulers and scalers, in an order that is the same in the next run."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchbus.plugin import Context, UsageError, hookimpl, inventory

from torchbus_checkpoint.loop import frames

Named = list[tuple[str, Any]]
KINDS = (Module, LRScheduler, GradScaler)


@dataclass(frozen=True)
class Contents:
    """Things with their names: ``trained`` models in the order in which optimizers hold them, ``other`` models by name."""

    trained: Named
    other: Named
    optimizers: Named
    schedulers: Named
    scalers: Named

    @property
    def models(self) -> Named:
        return self.trained + self.other


class Finder:
    """Remembers optimizers in the order in which they were made; finds the rest through what the user's variables name.

    The garbage collector is asked (tens of milliseconds) only when an optimizer has got parameters since: for models and
    schedulers that no variable names.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._unnamed: list[weakref.ref[Any]] | None = None
        self._last: Contents | None = None

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        self._unnamed = None
        if optimizer is not None:
            self._add(optimizer)

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._add(optimizer)

    def find(self) -> Contents:
        """Raises UsageError where it can't tell two things apart."""
        with self._session.in_parts():
            return self._find()

    def _find(self) -> Contents:
        names, things = frames.named(frames.user_frames(self._session.frame))
        optimizers = self._alive_optimizers(things)
        pool = list({id(thing): thing for thing in [*things, *self._found_by_gc()] if isinstance(thing, KINDS)}.values())
        trained, other = self._models([thing for thing in pool if isinstance(thing, Module)], optimizers, names)
        schedulers = _schedulers([thing for thing in pool if isinstance(thing, LRScheduler)], optimizers, names)
        scalers = [thing for thing in things if isinstance(thing, GradScaler)]
        self._last = Contents(*(_named(kind, names) for kind in (trained, other, optimizers, schedulers, scalers)))
        return self._last

    def look_once(self) -> None:
        """At the first step: for ``find_at_end``."""
        if self._last is None:
            self.find()

    def find_at_end(self) -> Contents:
        """Where the loop's function has returned, its variables are gone: then what was found last, in the loop."""
        last, now = self._last, self.find()
        return last if last is not None and len(last.optimizers) > len(now.optimizers) else now

    def _found_by_gc(self) -> list[Any]:
        if self._unnamed is None:
            found: list[Any] = inventory.alive(KINDS)  # type: ignore[arg-type]
            self._unnamed = [weakref.ref(thing) for thing in found]
        return [thing for thing in (known() for known in self._unnamed) if thing is not None]

    def _alive_optimizers(self, things: list[Any]) -> list[Optimizer]:
        """Those of this loop: others may be alive, of an earlier one."""
        for thing in things:  # made before the block
            if isinstance(thing, Optimizer):
                self._add(thing)
        return [optimizer for optimizer in (known() for known in self._optimizers) if optimizer is not None]

    def _add(self, optimizer: Optimizer) -> None:
        if optimizer not in self._known and self._session.captures(optimizer):
            self._known.add(optimizer)
            self._optimizers.append(weakref.ref(optimizer))

    def _models(self, modules: list[Module], optimizers: list[Optimizer], names: dict[int, str]) -> tuple[list[Module], list[Module]]:
        roots = {id(root): root for root in map(_inside, inventory.outermost(modules)) if not inventory.is_internal(root)}
        order = {id(p): index for index, p in enumerate(p for optimizer in optimizers for p in parameters(optimizer))}
        trained, other = {}, []
        for root in roots.values():
            held = [order[id(p)] for p in root.parameters() if id(p) in order]
            if not self._session.captures(root) or not root.state_dict():
                continue
            if held:
                trained[min(held)] = root
            elif id(root) in names:
                other.append(root)
        return [root for _, root in sorted(trained.items())], sorted(other, key=lambda root: names[id(root)])


def parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _inside(model: Module) -> Module:
    """A compiled model's own module, whose keys have no prefix."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, Module) else model


def _schedulers(found: list[LRScheduler], optimizers: list[Optimizer], names: dict[int, str]) -> list[LRScheduler]:
    parts = {id(part) for scheduler in found for part in getattr(scheduler, "_schedulers", ())}
    index = {id(optimizer): number for number, optimizer in enumerate(optimizers)}
    found = [scheduler for scheduler in found if id(scheduler) not in parts and id(scheduler.optimizer) in index]
    key = {id(one): (index[id(one.optimizer)], type(one).__name__, names.get(id(one), "")) for one in found}
    found.sort(key=lambda one: key[id(one)])
    for one, other in pairwise(found):
        if key[id(one)] == key[id(other)]:
            raise UsageError(
                f"two schedulers {type(one).__name__} of one optimizer, which no variable names: a checkpoint can't tell them apart; "
                "give each a variable of its own"
            )
    return found


def _named(things: list[Any], names: dict[int, str]) -> Named:
    """Each with its name, or that of its class; never two alike."""
    found: Named = []
    for thing in things:
        name = names.get(id(thing), class_name(thing))
        count = sum(other == name or other.startswith(f"{name} #") for other, _ in found)
        found.append((f"{name} #{count + 1}" if count else name, thing))
    return found


def class_name(thing: Any) -> str:
    """Of the script's own class: ``fully_shard`` makes one of each model's."""
    return next(cls.__name__ for cls in type(thing).__mro__ if not cls.__module__.startswith("torch.distributed.fsdp"))


def hidden_buffers(model: Module) -> dict[str, Tensor]:
    """Buffers that are in no state_dict."""
    kept = set(model.state_dict())
    return {name: buffer for name, buffer in model.named_buffers() if name not in kept and torch.is_tensor(buffer)}
