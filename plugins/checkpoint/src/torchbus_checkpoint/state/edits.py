"""Keeps constants of optimizers and schedulers that the user has edited between two runs."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from torchbus_checkpoint._compat import PARTS, parts_of
from torchbus_checkpoint.state.plain import State, decode

PLAIN = (bool, int, float, str, tuple, type(None))
RATES = ("lr", "momentum", "betas")
OF_SCHEDULES = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")
"""The keys that schedulers add to an optimizer's groups and do not change."""

EDITED = (
    "the script sets {} differently from the interrupted run: the new value is used, and a"
    " schedule continues as if it had had it from the beginning"
)
NOT_USED = (
    "the script sets {} differently from the interrupted run, which has changed it since: the run"
    " continues with the checkpoint's value. Set it after the loop has resumed, or begin again"
    " in another folder"
)


def hyperparameters(optimizer: Optimizer) -> list[State]:
    """Return the constants of each group."""
    return [
        {key: value for key, value in group.items() if key != "params" and type(value) in PLAIN}
        for group in optimizer.param_groups
    ]


def constants(scheduler: Any, state: State) -> State:
    """Return the entries of a scheduler's state, and of its parts, that are constructor arguments.

    Such entries do not change during a run.
    """
    names = {"base_lrs", *inspect.signature(type(scheduler)).parameters} - {"last_epoch"}
    known = {key: state[key] for key in state.keys() - {PARTS} if key.removeprefix("_") in names}
    both = zip(parts_of(scheduler), state.get(PARTS, ()), strict=False)
    for number, (part, inside) in enumerate(both):
        mine = constants(part, inside)
        known |= {f"{key} of part {number}": value for key, value in mine.items()}
    return known


class Edits:
    """Restores optimizers and schedulers. ``words`` has the warnings about edited constants.

    ``built`` returns the hyperparameters with which the script created an optimizer in this run.
    """

    def __init__(self, built: Callable[[Optimizer], list[State]]) -> None:
        self._built = built
        self._began: dict[int, list[State]] = {}
        self._replayed: set[int] = set()
        self._edited: list[str] = []
        self._lost: list[str] = []

    @property
    def words(self) -> list[str]:
        found = ((EDITED, self._edited), (NOT_USED, self._lost))
        return [text.format(", ".join(names)) for text, names in found if names]

    def look(
        self, optimizers: Iterable[Optimizer], schedulers: Sequence[tuple[Any, State]]
    ) -> None:
        """Find the edited schedules, before anything is restored."""
        self._began = {id(one): hyperparameters(one) for one in optimizers}
        counts = Counter(id(scheduler.optimizer) for scheduler, _ in schedulers)
        for scheduler, saved in schedulers:
            mine = constants(scheduler, scheduler.state_dict())
            theirs = constants(scheduler, decode(saved))
            names = [key for key in mine.keys() & theirs.keys() if mine[key] != theirs[key]]
            by_steps = not isinstance(scheduler, ReduceLROnPlateau) and "last_epoch" in saved
            if names and by_steps and counts[id(scheduler.optimizer)] == 1:
                self._replayed |= {id(scheduler), id(scheduler.optimizer)}
            found = self._edited if id(scheduler) in self._replayed else self._lost
            found += [f"{name} of {type(scheduler).__name__}" for name in sorted(names)]

    def put_optimizer(self, optimizer: Optimizer, was: list[State]) -> None:
        """Apply edited constants after the optimizer's state is restored.

        ``was`` has the constants with which the interrupted run created the optimizer.
        """
        both = zip(optimizer.param_groups, was, self._built(optimizer), strict=False)
        for group, before, now in both:
            for key in before.keys() & now.keys():
                if _same(before[key], now[key]) or key not in group:
                    continue
                name = f"{key} of {type(optimizer).__name__}"
                if _same(group[key], before[key]):
                    group[key] = now[key]
                    self._edited.append(name)
                elif not (id(optimizer) in self._replayed and key in RATES):
                    self._lost.append(name)

    def put_scheduler(self, scheduler: Any, saved: State) -> bool:
        """Repeat the interrupted run's steps on an edited scheduler.

        Returns False, and does nothing, if the scheduler was not edited.
        """
        if id(scheduler) not in self._replayed:
            return False
        began = self._began[id(scheduler.optimizer)]
        for group, values in zip(scheduler.optimizer.param_groups, began, strict=True):
            group.update(
                {
                    key: values[key]
                    for key in (*RATES, *OF_SCHEDULES)
                    if key in values & group.keys()
                }
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns because the optimizer has not stepped yet
            for _ in range(saved["last_epoch"] - scheduler.last_epoch):
                scheduler.step()
        return True


def _same(one: object, other: object) -> bool:
    as_is = [list(value) if isinstance(value, tuple) else value for value in (one, other)]
    return as_is[0] == as_is[1]
