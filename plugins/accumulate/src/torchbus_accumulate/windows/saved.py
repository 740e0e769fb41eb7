"""The checkpoint state of an open window, the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchbus.plugin import Context, Unsupported, UsageError

from torchbus_accumulate.position import WindowPosition
from torchbus_accumulate.windows.committed import whole
from torchbus_accumulate.windows.sums import WindowSum
from torchbus_strategy.compat import is_divided

ABSENT, DENSE, SPARSE = range(3)


def refuse_between(sums: Sequence[WindowSum], position: WindowPosition) -> None:
    """Raise Unsupported if a backward has added gradients that no step has committed yet."""
    committed = max((one.calls for one in sums), default=0)
    if any(one.is_being_added_to for one in sums) or (
        position.index > committed and not position.last
    ):
        raise Unsupported(
            "a checkpoint of accumulation between backward() and optimizer.step(): make it after"
            " optimizer.step()"
        )


def state_of(one: WindowSum, session: Context) -> dict[str, object]:
    """Return plain numbers, and the committed gradient of each parameter or None.

    With several ranks, they are means over ranks, so all ranks must call this.
    """
    if not one.calls:
        return {"calls": 0}
    gradients = one.committed()
    weight, samples, mass, part = one.weight, one.samples, float(one.mass), float(one.whole)
    if session.world_size > 1:
        weight, samples, mass = session.reduce(
            torch.tensor([weight, samples, mass], dtype=torch.float64)
        ).tolist()
        gradients = mean_over_ranks(session, one.parameters(), gradients)
    gradients = [None if gradient is None else gradient.detach().clone() for gradient in gradients]
    return {
        "calls": one.calls,
        "weight": weight,
        "samples": samples,
        "mass": mass,
        "whole": part,
        "gradients": gradients,
    }


@torch.no_grad()
def mean_over_ranks(
    session: Context, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the mean of each gradient over ranks, in the shape of its parameter.

    A gradient that is None on some ranks only counts as zeros there. A sharded gradient is already
    a part of the mean.
    """
    here = [
        ABSENT if gradient is None else SPARSE if gradient.is_sparse else DENSE
        for gradient in gradients
    ]
    kinds = session.reduce(torch.tensor(here), "max").tolist()
    found: list[Tensor | None] = []
    for parameter, gradient, kind in zip(parameters, gradients, kinds, strict=True):
        if kind == ABSENT:
            found.append(None)
            continue
        if gradient is not None and is_divided(gradient):
            found.append(whole(gradient) if session.gathers_states else gradient)
            continue
        mine = torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
        mean = session.reduce(mine)
        found.append(mean.to_sparse(1) if kind == SPARSE else mean)
    return found


def restore(sums: Sequence[WindowSum], states: Sequence[Mapping[str, Any]]) -> None:
    """Restore the open windows, in the order of the optimizers."""
    open_windows = [number for number, state in enumerate(states) if state["calls"]]
    if open_windows and open_windows[-1] >= len(sums):
        raise UsageError(
            "this checkpoint has an open window of accumulation for optimizer"
            f" {open_windows[-1] + 1}, and there are {len(sums)} optimizers: create the optimizers"
            " before you load it"
        )
    for one, state in zip(sums, states, strict=False):
        one.drop()
        if state["calls"]:
            one.restore(state, state["gradients"])
