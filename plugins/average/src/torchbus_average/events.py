"""The event that torchbus-average adds: a strategy gathers averages that only some ranks have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchbus.plugin import hookspec

if TYPE_CHECKING:
    from torch import Tensor


@hookspec(firstresult=True)
def gather_average(tensor: Tensor, state: dict[str, Any]) -> dict[str, Any] | None:
    """Return the state of a parameter's or buffer's average from a rank that has the values.

    Sent once per tensor while a checkpoint is made. All ranks send it, for the same tensors in the
    same order. ``state`` is this rank's, with tensors of the shape and dtype of ``tensor``. A rank
    that lacks the values gets the state of one that has them. Without an answer, every rank has
    them.
    """
