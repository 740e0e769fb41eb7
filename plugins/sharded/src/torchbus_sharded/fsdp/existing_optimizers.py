"""The optimizers that were made before the block, and that all ranks have."""

from __future__ import annotations

from collections import Counter

from torch import Tensor
from torch.optim import Optimizer
from torchbus import objects

from torchbus_sharded.checks.agreement import Agreement

Form = tuple[str, tuple[tuple[int, ...], ...]]


def common_optimizers(agreement: Agreement) -> list[Optimizer]:
    """These optimizers, in the same order on all ranks. All ranks call it.

    In a new process a function finds what it was sent, but the caller may have other models too:
    these are left alone. Ranks with as many optimizers of the same forms have the same ones,
    whatever the values of their parameters.
    """
    alive = objects.optimizers()
    agreement.meet("the optimizers made before the block")
    forms, keys = [_form(one) for one in alive], [(_form(one), _values(one)) for one in alive]
    told = agreement.told((forms, keys))
    if (
        all(their_forms == forms for their_forms, _ in told)
        and len({tuple(sorted(theirs)) for _, theirs in told}) > 1
    ):
        return alive
    common = Counter(told[0][1])
    for _, theirs in told:
        common &= Counter(theirs)
    waiting = list(zip(keys, alive, strict=True))
    found = []
    for key in (key for key in told[0][1] if key in common):
        place = next((index for index, (own, _) in enumerate(waiting) if own == key), None)
        if place is not None and common[key]:
            common[key] -= 1
            found.append(waiting.pop(place)[1])
    return found


def _form(optimizer: Optimizer) -> Form:
    return type(optimizer).__qualname__, tuple(
        tuple(parameter.shape) for parameter in _parameters(optimizer)
    )


def _values(optimizer: Optimizer) -> tuple[str, ...]:
    """A number for each parameter, rounded so that it doesn't depend on how a machine adds."""
    return tuple(
        "" if one.is_meta else f"{float(one.detach().double().sum()):.9e}"
        for one in _parameters(optimizer)
    )


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
