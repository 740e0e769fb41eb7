"""Parses the schedule of frozen modules, and applies it to models."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.nn import Module, Parameter
from torchbus.plugin import Context, Unsupported, UsageError, expect, hookimpl


def rate(factor: float) -> float:
    """Return the option ``unfreeze_lr``. Raises UsageError unless it is positive and finite."""
    expect("unfreeze_lr", factor, (int, float), "what learning rates are multiplied by")
    if not 0 < factor < float("inf"):
        raise UsageError(f"unfreeze_lr={factor}: it must be positive")
    return factor


class ScheduleCheck:
    """Checks the schedule against the models once, when the loop first calls backward.

    ``problem`` returns a message about the other options, or "". Raises UsageError.
    """

    def __init__(
        self,
        session: Context,
        schedule: Schedule,
        frozen: FrozenModels,
        problem: Callable[[], str],
    ) -> None:
        self._session = session
        self._schedule = schedule
        self._frozen = frozen
        self._problem = problem

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        self._session.bus.unregister(self)
        refuse_unknown(self._schedule, self._frozen)
        if self._problem():
            raise UsageError(self._problem())


def refuse_strategy(session: Context) -> None:
    """Raise Unsupported under a strategy that can't unfreeze parameters."""
    if not all(getattr(plugin, "unfreezes", True) for _, plugin in session.bus.plugins()):
        raise Unsupported(
            f"unfreeze=... with strategy={session.options['strategy']!r}: it trains only parameters"
            " that are not frozen at the first forward. Use strategy='ddp' or 'fsdp'"
        )


def refuse_unknown(schedule: Schedule, frozen: FrozenModels) -> None:
    """Raise UsageError for an entry that names no parameter of any model."""
    named = [
        entry for model in frozen.models for entry, mine in frozen.named(model).items() if mine
    ]
    for entry in schedule:
        if entry not in named:
            near = ", ".join(map(repr, nearest(entry.pattern, frozen.models)))
            raise UsageError(
                f"unfreeze={{{entry.pattern!r}: ...}} names no parameter of a model that an"
                " optimizer trains, or none that other entries leave to it. The nearest modules:"
                f" {near or 'none'}"
            )


def refuse_all_frozen(model: Module) -> None:
    """Raise UsageError if all parameters of a model are frozen, because backward would raise."""
    parameters = list(model.parameters())
    if not any(one.requires_grad for one in parameters):
        raise UsageError(
            f"unfreeze=...: all {len(parameters)} parameter tensors of {type(model).__name__} are"
            " frozen, so backward would find nothing to train. Leave out of the schedule what is"
            " trained from the beginning, such as the head"
        )


class FrozenModels:
    """Freezes and unfreezes the parameters that the schedule names, and their norm layers.

    Args:
        schedule: the frozen modules, and when each is unfrozen.
        keeps_statistics: whether frozen layers with running statistics are in eval mode.
    """

    def __init__(self, schedule: Schedule, keeps_statistics: bool) -> None:
        self._schedule = schedule
        self._keeps_statistics = keeps_statistics
        self._waiting: WeakKeyDictionary[Module, Schedule] = WeakKeyDictionary()
        self.next_step = math.inf
        """The number of real steps after which the next module is unfrozen."""

    @property
    def models(self) -> list[Module]:
        """The models, in the order in which they were found."""
        return list(self._waiting)

    def named(self, model: Module) -> dict[FrozenModules, dict[str, Parameter]]:
        """Return the parameters that each entry names in a model, whether frozen now or not."""
        return parameters(model, self._schedule)

    def have(self, parameters: Iterable[Tensor]) -> bool:
        """Whether all of these parameters belong to known models."""
        known = {id(one) for model in self._waiting for one in model.parameters()}
        return all(id(one) in known for one in parameters)

    def put(self, model: Module, steps: int, epoch: int) -> None:
        """Freeze and unfreeze a model's parameters as after ``steps`` real steps, in this epoch."""
        self._waiting[model] = tuple(one for one in self._schedule if not one.is_due(steps, epoch))
        for entry, parameters in self.named(model).items():
            for parameter in parameters.values():
                parameter.requires_grad_(entry not in self._waiting[model])
        self.keep_statistics(model)
        self._plan()

    def unfreeze(
        self, model: Module, steps: int, epoch: int
    ) -> dict[FrozenModules, list[Parameter]]:
        """Unfreeze the parameters that are due, and return them by entry."""
        due = [one for one in self._waiting[model] if one.is_due(steps, epoch)]
        if not due:
            return {}
        self._waiting[model] = tuple(one for one in self._waiting[model] if one not in due)
        named, norms = self.named(model), self._norms(model)
        for entry in due:
            for parameter in named[entry].values():
                parameter.requires_grad_(True)
            for norm in norms[entry]:
                norm.training = model.training
        self._plan()
        return {entry: list(named[entry].values()) for entry in due}

    def keep_statistics(self, model: Module) -> None:
        """Put the frozen norm layers in eval mode."""
        norms = self._norms(model)
        for entry in self._waiting[model]:
            for norm in norms[entry]:
                norm.training = False

    def _norms(self, model: Module) -> dict[FrozenModules, list[Module]]:
        if not self._keeps_statistics:
            return {entry: [] for entry in self._schedule}
        return norms(model, self._schedule)

    def _plan(self) -> None:
        steps = [one.step for waiting in self._waiting.values() for one in waiting]
        self.next_step = min((one for one in steps if one is not None), default=math.inf)


COMPILED = "_orig_mod."


def parameters(model: Module, schedule: Schedule) -> dict[FrozenModules, dict[str, Parameter]]:
    """Return the parameters that each entry names, by name, each parameter once.

    A parameter that a model uses in several places has several names. Of all entries that match it,
    the one with the most characters that are not wildcards decides.
    """
    held: dict[Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_floating_point() or parameter.is_complex():
            held.setdefault(parameter, []).append(name)
    parts: dict[FrozenModules, dict[str, Parameter]] = {entry: {} for entry in schedule}
    for parameter, known in held.items():
        entry = _entry_of([one for name in known for one in _prefixes(name)], schedule)
        if entry is not None:
            parts[entry][known[0]] = parameter
    return parts


def norms(model: Module, schedule: Schedule) -> dict[FrozenModules, list[Module]]:
    """Return the layers with running statistics that each entry names."""
    parts: dict[FrozenModules, list[Module]] = {entry: [] for entry in schedule}
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            entry = _entry_of(_prefixes(name), schedule)
            if entry is not None:
                parts[entry].append(module)
    return parts


def _prefixes(name: str) -> list[str]:
    """Return ``a``, ``a.b`` and ``a.b.c`` for ``a.b.c``: the enclosing modules, and the name."""
    parts = name.replace(COMPILED, "").split(".")
    return list(accumulate(parts, "{}.{}".format))


def _entry_of(names: list[str], schedule: Schedule) -> FrozenModules | None:
    """Return the entry that decides, or None. Raises UsageError if two decide differently."""
    naming = [
        entry for entry in schedule if any(fnmatchcase(name, entry.pattern) for name in names)
    ]
    naming.sort(key=lambda entry: -entry.detail)
    if len(naming) > 1 and naming[0].detail == naming[1].detail:
        one, other = naming[:2]
        if one.when != other.when:
            raise UsageError(
                f"unfreeze: {one.pattern!r} at {one.when} and {other.pattern!r} at {other.when}"
                f" both name {names[-1]}, and neither spells out more of it: write the name out for"
                " one of them"
            )
    return naming[0] if naming else None


def nearest(pattern: str, models: Iterable[Module]) -> list[str]:
    """Return the names of modules that look most like the pattern."""
    known = {name for model in models for name in _module_names(model)}
    near = difflib.get_close_matches(pattern, sorted(known), n=3, cutoff=0.4)
    return near or sorted(known, key=lambda name: (name.count("."), name))[:3]


def _module_names(model: Module) -> Iterator[str]:
    for name, _ in model.named_modules():
        if name.replace(COMPILED, "").strip("."):
            yield name.replace(COMPILED, "")


EPOCH = re.compile(r"epoch (\d+)")
WILD = re.compile(r"\*|\?|\[[^]]*\]")


@dataclass(frozen=True)
class FrozenModules:
    """Modules that are frozen until a step, or until an epoch.

    ``pattern`` is a name, or a pattern with ``*``, ``?`` and ``[...]``. ``step`` is the number of
    real steps before. ``epoch`` is a number of ``s.epochs``, from 0. One of the two is None.
    """

    pattern: str
    step: int | None = None
    epoch: int | None = None

    @property
    def when(self) -> str:
        """The step or epoch as text."""
        return f"epoch {self.epoch}" if self.step is None else f"step {self.step}"

    @property
    def detail(self) -> int:
        """The number of the pattern's characters that are not wildcards."""
        return len(WILD.sub("", self.pattern))

    def is_due(self, steps: int, epoch: int) -> bool:
        """Whether the loop has made the steps, or has begun the epoch."""
        if self.step is not None:
            return steps >= self.step
        return self.epoch is not None and epoch >= self.epoch


Schedule = tuple[FrozenModules, ...]


def read(unfreeze: Mapping[str, int | str] | None) -> Schedule:
    """Return the schedule of the option ``unfreeze``. Raises UsageError if it is invalid."""
    if unfreeze is None:
        return ()
    expect(
        "unfreeze",
        unfreeze,
        Mapping,
        "a dict from names of modules to steps, such as {'backbone.*': 500}",
    )
    schedule = tuple(_entry(pattern, when) for pattern, when in unfreeze.items())
    _refuse_unordered([one for one in schedule if one.step is not None])
    _refuse_unordered([one for one in schedule if one.epoch is not None])
    return schedule


def _entry(pattern: object, when: object) -> FrozenModules:
    if not isinstance(pattern, str) or not pattern:
        raise UsageError(
            f"unfreeze={{{pattern!r}: {when!r}}}: the key must be the name of a module, such as"
            " 'backbone.layer4', or a pattern, such as 'backbone.*'"
        )
    epoch = EPOCH.fullmatch(when) if isinstance(when, str) else None
    number = int(epoch[1]) if epoch else when
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UsageError(
            f"unfreeze={{{pattern!r}: {when!r}}}: the value must be a number of real optimizer"
            " steps from 1, such as 500, or an epoch of s.epochs from 1, such as 'epoch 2'"
        )
    return FrozenModules(pattern, epoch=number) if epoch else FrozenModules(pattern, step=number)


def _refuse_unordered(entries: list[FrozenModules]) -> None:
    for one, other in pairwise(entries):
        if (one.step or one.epoch or 0) > (other.step or other.epoch or 0):
            raise UsageError(
                f"unfreeze: {other.pattern!r} at {other.when} stands after {one.pattern!r} at"
                f" {one.when}: list modules in the order in which they are unfrozen"
            )
