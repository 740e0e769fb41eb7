"""Puts parameters that an optimizer lacks into a group of their own, which its schedulers know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchbus import objects
from torchbus.plugin import UsageError

RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""What groups hold that is a learning rate."""

RATES_BY_GROUP = ("base_lrs", "max_lrs")
OTHERS_BY_GROUP = ("lr_lambdas", "min_lrs", "base_momentums", "max_momentums")
"""Lists of torch's schedulers with one value for each group."""


def missing(
    model: Module,
    named: Iterable[dict[str, Parameter]],
    optimizer: Optimizer,
    known: Iterable[Optimizer],
) -> dict[str, Parameter]:
    """Return the parameters of an optimizer's model that are unfrozen later, and in no optimizer.

    Raises UsageError if several optimizers train the model: any of them could get them.
    """
    own = {id(one) for one in model.parameters()}
    training = [one for one in known if own & held(one)]
    if optimizer not in training:
        return {}
    there = set[int]().union(*map(held, training))
    found = {name: one for parts in named for name, one in parts.items() if id(one) not in there}
    if found and len(training) > 1:
        raise UsageError(
            f"unfreeze=...: {next(iter(found))} is in no optimizer, and {len(training)} optimizers"
            f" train {type(model).__name__}: put it into the one that is to train it. A frozen"
            " parameter has no gradient, and is not stepped"
        )
    return found


def held(optimizer: Optimizer) -> set[int]:
    """The ids of an optimizer's parameters."""
    return {id(one) for group in optimizer.param_groups for one in group["params"]}


def add(optimizer: Optimizer, parameters: dict[str, Parameter], factor: float) -> None:
    """Add a group with the first group's hyperparameters, and its learning rates times ``factor``.

    Each scheduler goes on as if the group had been there. Raises UsageError if it can't.
    """
    schedulers = [one for one in objects.alive(LRScheduler) if one.optimizer is optimizer]
    _refuse_unknown(schedulers, optimizer)
    before, first = len(optimizer.param_groups), optimizer.param_groups[0]
    copied = {key: value for key, value in first.items() if key not in ("params", "param_names")}
    copied |= {key: copied[key] * factor for key in RATES if key in copied}
    named = "param_names" in first  # torch accepts names for all groups or for none
    added = list(parameters.items()) if named else list(parameters.values())
    optimizer.add_param_group({"params": added, **copied})
    # a listener may have scaled the rates of a new group, and these are of a group that it knows
    optimizer.param_groups[-1].update(copied)
    for scheduler in schedulers:
        _extend(scheduler, before, factor)


def _extend(scheduler: Any, groups: int, factor: float) -> None:
    for name in (*RATES_BY_GROUP, *OTHERS_BY_GROUP):
        values = getattr(scheduler, name, None)
        if isinstance(values, list) and len(values) == groups:
            values.append(values[0] * factor if name in RATES_BY_GROUP else values[0])


def _refuse_unknown(schedulers: list[LRScheduler], optimizer: Optimizer) -> None:
    """Of torch's own schedulers it is known what they keep for each group."""
    for one in schedulers:
        if not type(one).__module__.startswith("torch.optim."):
            raise UsageError(
                f"unfreeze=...: {type(optimizer).__name__} lacks parameters that are unfrozen"
                f" later, and {type(one).__name__}, its scheduler, may not accept another group."
                " Give the optimizer all parameters: a frozen one has no gradient, and is not"
                " stepped"
            )
