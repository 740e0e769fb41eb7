"""Finds a loop's models, optimizers, schedulers and scalers, in the same order in every run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchbus import objects
from torchbus.plugin import Context, UsageError, hookimpl

from torchbus_checkpoint._compat import parts_of, uncompiled
from torchbus_checkpoint.loop import frames
from torchbus_checkpoint.state.edits import hyperparameters
from torchbus_checkpoint.state.plain import State
from torchbus_strategy.collectives import in_parts

Named = list[tuple[str, Any]]
ShapeOf = Callable[[Tensor], torch.Size]
KINDS = (Module, LRScheduler, GradScaler)


@dataclass(frozen=True)
class LoopContents:
    """The objects of a loop with their names.

    ``trained`` models are in the order in which optimizers hold them. ``other`` models are sorted
    by name. ``shape_of`` returns the shape of a whole parameter, and ``built`` returns the
    hyperparameters with which the script created an optimizer.
    """

    trained: Named
    other: Named
    optimizers: Named
    schedulers: Named
    scalers: Named
    shape_of: ShapeOf
    built: Callable[[Optimizer], list[State]] = lambda optimizer: []

    @property
    def models(self) -> Named:
        return self.trained + self.other

    @property
    def names(self) -> dict[int, str]:
        """The names by the id of their object."""
        named = self.models + self.optimizers + self.schedulers + self.scalers
        return {id(thing): name for name, thing in named}

    def has_more_than(self, later: LoopContents) -> bool:
        """Whether ``later``, of the same loop, lacks an object of some kind."""
        kinds = ("trained", "other", "optimizers", "schedulers", "scalers")
        return any(len(getattr(self, kind)) > len(getattr(later, kind)) for kind in kinds)


class ObjectFinder:
    """Remembers the optimizers in the order of their creation, and finds the rest by variables.

    Models and schedulers that no variable names are found through the garbage collector. A search
    takes tens of milliseconds, so it is repeated only after an optimizer has got parameters.

    ``since`` is the number of the loop's steps before the first step of the newest model. A
    monitored value that came earlier was that of another training's models.
    """

    hears_trials = False

    def __init__(self, session: Context) -> None:
        self._session = session
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._built: weakref.WeakKeyDictionary[Optimizer, list[State]] = weakref.WeakKeyDictionary()
        self._unnamed: list[weakref.ref[object]] | None = None
        self._last: LoopContents | None = None
        self._seen: weakref.WeakSet[Module] = weakref.WeakSet()
        self.since = 0

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        self._unnamed = self._last = None  # the models of the last fold can be deleted
        if optimizer is not None:
            self._add(optimizer)

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._add(optimizer)

    def find(self, known: LoopContents | None = None) -> LoopContents:
        """Find all objects. Those in ``known`` have their name in it.

        Raises UsageError if two objects can't be distinguished.
        """
        with in_parts(self._session):
            return self._find({} if known is None else known.names)

    def _find(self, known: dict[int, str]) -> LoopContents:
        names, things = frames.named(frames.user_frames(self._session.frame))
        names |= known
        optimizers = self._alive_optimizers(things)
        pool = {id(thing): thing for thing in [*things, *self._found_by_gc()]}.values()
        modules = [thing for thing in pool if isinstance(thing, Module)]
        trained, other = self._models(modules, optimizers, names)
        self._see(trained, optimizers)
        found = [thing for thing in pool if isinstance(thing, LRScheduler)]
        schedulers = _schedulers(found, optimizers, names)
        scalers = [thing for thing in things if isinstance(thing, GradScaler)]
        models = _named([*trained, *other], names)
        self._last = LoopContents(
            models[: len(trained)],
            models[len(trained) :],
            _named(optimizers, names),
            _named(schedulers, names),
            _named(scalers, names),
            partial(objects.shape_of, bus=self._session.bus),
            lambda optimizer: self._built.get(optimizer, []),
        )
        return self._last

    def _see(self, trained: list[Module], optimizers: list[Optimizer]) -> None:
        steps, is_first = self._session.steps, not self._seen
        for model in [one for one in trained if one not in self._seen]:
            self._seen.add(model)
            mine = {id(one) for one in model.parameters()}
            holding = [one for one in optimizers if any(id(p) in mine for p in parameters(one))]
            if not is_first:
                self.since = max(self.since, steps.count - max(map(steps.of, holding)))

    def look_once(self) -> None:
        """Find all objects at the first step, so that ``find_at_end`` knows them."""
        if self._last is None:
            self.find()

    def find_at_end(self) -> LoopContents:
        """Find all objects at the end of the block.

        If the loop's function has returned, its variables no longer exist. So objects keep the
        names of the previous result, and this returns that result if objects are missing.
        """
        last = self._last
        now = self.find(last)
        return last if last is not None and last.has_more_than(now) else now

    def _found_by_gc(self) -> list[object]:
        if self._unnamed is None:
            found = objects.alive(cast(type[object], KINDS))  # issubclass accepts a tuple, too
            self._unnamed = [weakref.ref(thing) for thing in found]
        return [thing for thing in (known() for known in self._unnamed) if thing is not None]

    def _alive_optimizers(self, things: list[object]) -> list[Optimizer]:
        """Return the optimizers of this loop. Those of an earlier loop may be alive, too."""
        for thing in things:  # some were created before the block
            if isinstance(thing, Optimizer):
                self._add(thing)
        known = [reference() for reference in self._optimizers]
        return [optimizer for optimizer in known if optimizer is not None]

    def _add(self, optimizer: Optimizer) -> None:
        if optimizer not in self._known and self._session.captures(optimizer):
            self._known.add(optimizer)
            self._built[optimizer] = hyperparameters(optimizer)
            self._optimizers.append(weakref.ref(optimizer))

    def _models(
        self, modules: list[Module], optimizers: list[Optimizer], names: dict[int, str]
    ) -> tuple[list[Module], list[Module]]:
        """Return the trained models, and the others that a variable names."""
        order = {
            id(p): index
            for index, p in enumerate(p for optimizer in optimizers for p in parameters(optimizer))
        }
        trained, other = {}, []
        roots = self._roots(modules)
        for root in roots:
            if id(root) not in names and _is_part(root, roots):
                continue
            held = [order[id(p)] for p in root.parameters() if id(p) in order]
            if held:
                trained[min(held)] = root
            elif id(root) in names:
                other.append(root)
        other.sort(key=lambda root: names[id(root)])
        return [root for _, root in sorted(trained.items())], other

    def _roots(self, modules: list[Module]) -> list[Module]:
        """Return the outermost modules that have a state, each once."""
        roots = {id(root): root for root in map(uncompiled, objects.outermost(modules))}
        return [
            root
            for root in roots.values()
            if not objects.is_internal(root) and self._session.captures(root) and root.state_dict()
        ]


def _is_part(model: Module, others: list[Module]) -> bool:
    """Whether a model is a temporary wrapper of a part of another model, as in a neural ODE.

    The other model has all tensors of this model, and more.
    """
    mine = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    return any(
        mine < {id(tensor) for tensor in other.state_dict(keep_vars=True).values()}
        for other in others
        if other is not model
    )


def parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _schedulers(
    found: list[LRScheduler], optimizers: list[Optimizer], names: dict[int, str]
) -> list[LRScheduler]:
    parts = {id(part) for scheduler in found for part in parts_of(scheduler)}
    index = {id(optimizer): number for number, optimizer in enumerate(optimizers)}
    found = [
        scheduler
        for scheduler in found
        if id(scheduler) not in parts and id(scheduler.optimizer) in index
    ]
    key = {
        id(one): (index[id(one.optimizer)], type(one).__name__, names.get(id(one), ""))
        for one in found
    }
    found.sort(key=lambda one: key[id(one)])
    for one, other in pairwise(found):
        if key[id(one)] == key[id(other)]:
            raise UsageError(
                f"two schedulers {type(one).__name__} of one optimizer, which no variable names:"
                " a checkpoint can't distinguish them; assign each to a variable"
            )
    return found


def _named(things: Iterable[object], names: dict[int, str]) -> Named:
    """Give each object the name of its variable, or of its class. All names differ."""
    found: Named = []
    for thing in things:
        name = names.get(id(thing), class_name(thing))
        count = sum(other == name or other.startswith(f"{name} #") for other, _ in found)
        found.append((f"{name} #{count + 1}" if count else name, thing))
    return found


def class_name(thing: object) -> str:
    """Return the name of the script's own class, from which ``fully_shard`` derives another one."""
    return next(
        cls.__name__
        for cls in type(thing).__mro__
        if not cls.__module__.startswith("torch.distributed.fsdp")
    )


def hidden_buffers(model: Module) -> dict[str, Tensor]:
    """Return the buffers that are not in the state_dict."""
    retained = set(model.state_dict())
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name not in retained and torch.is_tensor(buffer)
    }
