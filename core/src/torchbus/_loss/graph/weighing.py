"""Multiplies what flows back into one term of a loss."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from torchbus._loss.graph.term import Number, Term


def weigh(term: Term, weight: Number) -> RemovableHandle:
    """Multiply the gradient of what a term's node makes, or of one number of it, by a weight."""
    node, ends = term.reduced_by, not isinstance(weight, Tensor) and not weight > 0.0
    if term.place is None:
        return node.register_prehook(_each(lambda gradient: None if ends else gradient * weight))
    place = slice(term.place, term.place + 1)
    if ends:  # behind the node, because its other side may be NaN
        change = _each(lambda gradient: _changed(gradient, place, 0.0))
        return node.register_hook(lambda made, _: change(made))
    return node.register_prehook(
        _each(lambda gradient: _changed(gradient, place, gradient[place] * weight))
    )


def _changed(gradient: Tensor, place: slice, values: Tensor | float) -> Tensor:
    changed = gradient.clone()
    changed[place] = values
    return changed


def _each(
    change: Callable[[Tensor], Tensor | None],
) -> Callable[[tuple[Tensor | None, ...]], tuple[Tensor | None, ...]]:
    return lambda gradients: tuple([None if one is None else change(one) for one in gradients])
