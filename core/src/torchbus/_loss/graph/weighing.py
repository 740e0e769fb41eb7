"""Multiplies what flows back into one term of a loss."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from torchbus._compat import saved
from torchbus._loss.graph.term import Number, Term

Gradients = tuple[Tensor | None, ...]


def weigh(term: Term, weight: Number) -> list[RemovableHandle]:
    """Multiply the gradient of what a term's node makes, or of one number of it, by a weight."""
    node, ends = term.reduced_by, not isinstance(weight, Tensor) and not weight > 0.0
    if term.place is None:
        return [node.register_prehook(_each(lambda gradient: None if ends else gradient * weight))]
    place = slice(term.place, term.place + 1)
    before = node.register_prehook(
        _each(lambda one: _changed(one, place, 0.0 if ends else one[place] * weight))
    )
    return [before, node.register_hook(_without(place, node))] if ends else [before]


def _without(place: slice, node: Node) -> Callable[[Gradients, Gradients], Gradients]:
    """Leave one number out of what a product has made: it may be NaN, and 0 * NaN is NaN.

    The product has made a vector, and what flows into its other side: a vector too, or the one
    weight of all numbers, which adds them up.
    """

    def leave_out(made: Tensor, given: Tensor) -> Tensor:
        if made.numel() == given.numel():
            return _changed(made, place, 0.0)
        return (given * _slope(node, given.numel())).nansum().reshape_as(made)

    def changed(made: Gradients, given: Gradients) -> Gradients:
        (gradient,) = given
        assert gradient is not None
        return _each(lambda one: leave_out(one, gradient))(made)

    return changed


def _slope(node: Node, size: int) -> Tensor:
    """The derivative of a product of so many numbers by the weight of all."""
    own: Tensor = saved.own(node)
    other: Tensor = saved.other(node)
    if type(node).__name__ == "DivBackward0":
        return -own / other**2
    return own if own.numel() == size else other


def _changed(gradient: Tensor, place: slice, values: Tensor | float) -> Tensor:
    changed = gradient.clone()
    changed[place] = values
    return changed


def _each(change: Callable[[Tensor], Tensor | None]) -> Callable[[Gradients], Gradients]:
    return lambda gradients: tuple([None if one is None else change(one) for one in gradients])
