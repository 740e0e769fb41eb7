"""Checks that a checkpoint holds every tensor of every model and optimizer exactly once."""

from __future__ import annotations

import hashlib
import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import warn
from torchbus.runtime.steps import Steps

from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.state.plain import State

Held = dict[str, tuple[int, str]]
"""By model or optimizer: how many tensors, and a digest of their names."""


def held(weights: dict[str, State], training: State) -> Held:
    """Return the tensors that this rank's states hold."""
    states = [(f"model {name}", state) for name, state in weights.items()]
    states += [
        (f"the state of optimizer {one['name']} ({one['class']})", one["state"]["state"])
        for one in training["optimizers"]
    ]
    return {what: _counted(sorted(_names(state))) for what, state in states}


def _counted(names: list[str]) -> tuple[int, str]:
    return len(names), hashlib.sha256("\n".join(names).encode()).hexdigest()


def _names(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, Tensor):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _names(item, f"{path}/{key}")


def refuse_separate(reported: list[Held], where: object) -> None:
    """Raise CheckpointError if a rank's states hold other tensors than rank 0's.

    Only rank 0 writes whole tensors, so a tensor that only another rank has would be lost.
    """
    first = reported[0]
    for rank, theirs in enumerate(reported):
        for what in {**first, **theirs}:
            if first.get(what) != theirs.get(what):
                raise CheckpointError(
                    f"checkpoint {where} would not be complete: {what} has"
                    f" {_number(first, what)} tensors on rank 0, and rank {rank} has"
                    f" {_number(theirs, what)}, which are not the same ones. A strategy that"
                    " divides them must gather them in its hooks of state_dict()"
                )


def _number(held: Held, what: str) -> int:
    return held.get(what, (0, ""))[0]


def warn_of_absent_states(optimizers: Iterable[tuple[str, Optimizer]], steps: Steps) -> None:
    """Warn if an optimizer has stepped and shows no state, although its class keeps some."""
    for name, optimizer in optimizers:
        if steps.of(optimizer) and not optimizer.state_dict()["state"] and keeps_state(optimizer):
            warn(
                f"the checkpoint has no state of optimizer {name} ({type(optimizer).__name__}),"
                f" which has made {steps.of(optimizer)} steps. If a strategy keeps the state"
                " elsewhere, it must return it from its hook of state_dict(); if the optimizer has"
                " had no gradients so far, all is well"
            )


def keeps_state(optimizer: Optimizer) -> bool:
    """Whether a step of this class with these hyperparameters leaves a state; tried on a number."""
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)
    trial: Any = object.__new__(type(optimizer))
    vars(trial).update(vars(optimizer))
    vars(trial).pop("step", None)
    trial.state = defaultdict(dict)
    trial.param_groups = [{**optimizer.param_groups[0], "params": [weight]}]
    try:
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(trial)
    except KeyError:  # its constructor makes the state, as that of Adagrad in torch 2.4
        return True
    except Exception:  # it needs a closure, or more
        return False
    return bool(trial.state.get(weight))
