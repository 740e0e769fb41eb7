"""Tensors that get a gradient and that no optimizer holds: inputs, perturbations, latent codes.

Each rank has its own tensors. Their gradient is that of the loss over all ranks, so for rows of
samples it is what one process computes for these samples.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torchbus.plugin import BackwardCall, Context
from torchbus.tree import as_list

from torchbus_strategy.batches import TrackedBatch, is_plain, only_evaluate
from torchbus_strategy.graph import children_of, nodes_below
from torchbus_strategy.loss.reading import is_sum, terms_of
from torchbus_strategy.loss.terms import Term, same
from torchbus_strategy.loss.walks import leaves_some
from torchbus_strategy.user_code import warn_of_gradients

NODES_AT_MOST = 20_000
serial_of = attrgetter("serial")
LOOKS = 3
"""How many backwards of each kind are looked at: the first for a batch, the second, and so on."""
KINDS = 32
DATA_ARGUMENT = {"AddmmBackward0": 1, "MmBackward0": 0, "ConvolutionBackward0": 0}
OUTLIVES = (
    "a tensor of shape {}, which no optimizer holds, gets gradients from several batches: each rank"
    " has its own gradient, so the tensor differs between ranks once the loop changes it. If all"
    " ranks should share it, call s.adopt(tensor) before its first backward"
)
OF_A_MEAN = (
    "torch.autograd.grad communicates nothing: the gradient of a mean over this rank's samples is"
    " larger than one process's, with the same sign and direction. Use loss.backward(), a sum over"
    " samples, or the batch's own tensor (x.requires_grad_()), which are exact"
)


class OtherLeaves:
    """Finds leaves that no optimizer holds.

    ``is_known`` says whether the strategy knows a leaf already. ``current`` lists the leaves of the
    latest backward. Finding them needs a walk through the graph. It is done in the first backwards
    of each kind, then at growing intervals, and in each backward once any were found. Tensors of
    the batch are found in each backward.
    """

    def __init__(self, session: Context, is_known: Callable[[Tensor], bool]) -> None:
        self._session = session
        self._is_known = is_known
        self._looks: Counter[int] = Counter()
        self._backwards = self._nth = self._feeding = 0
        self._next_look = 1
        self._has_found = self._has_warned = False
        self._seen: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self.current: list[Tensor] = []
        session.replace(torch.autograd, "grad", self._over_all_ranks)

    def find(self, call: BackwardCall) -> list[Tensor]:
        """Return the leaves that a backward will give a gradient."""
        inputs: list[Tensor] = []
        self.current = inputs
        current = self._session.batches.current
        if self._is_divided():
            for batch in current:
                inputs += batch.leaves()
            if self._is_due(current):
                self.current = [*inputs, *self._made(call, inputs)]
        return self.current

    def fill(self) -> None:
        """Give missing gradients on a rank without samples the value 0: the loop may read them."""
        for leaf in self.current if not self._session.share.weight else ():
            leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    def _is_divided(self) -> bool:
        """Whether no two ranks have the same samples."""
        world = self._session.world
        return bool(
            world.data.parts == world.world_size > 1
            and self._session.share.count
            and not only_evaluate(self._session.batches.current)
        )

    def _is_due(self, current: tuple[TrackedBatch, ...]) -> bool:
        feeding = max(map(serial_of, current), default=0)
        if feeding != self._feeding:
            self._feeding, self._nth = feeding, 0
        nth = self._nth = min(self._nth + 1, KINDS)
        self._backwards += 1
        if self._backwards >= self._next_look:
            self._next_look = self._backwards * 3 // 2 + 1
        elif self._looks[nth] >= LOOKS:
            return self._has_found
        self._looks[nth] += 1
        return True

    def _made(self, call: BackwardCall, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the leaves that the loop has made itself, apart from ``inputs``."""
        roots = [one.grad_fn for one in as_list(call.tensors) if isinstance(one, Tensor)]
        found = [one for one in leaves_below(roots) if not self._is_known(one)]
        self._has_found |= bool(found)
        for one in found:
            self._look_at_age(one)
        return [one for one in found if not _is_in(one, inputs)]

    def _look_at_age(self, leaf: Tensor) -> None:
        """Warn, once, of a leaf that outlives its batch, because ranks may share it."""
        reference, fed_by = self._seen.get(id(leaf), (None, 0))
        if reference is None or reference() is not leaf:
            gone = [key for key, (one, _) in self._seen.items() if one() is None]
            for key in gone:
                del self._seen[key]
            self._seen[id(leaf)] = (weakref.ref(leaf), self._feeding)
        elif fed_by != self._feeding and self._batch_of(leaf) is None:
            self._warn(OUTLIVES.format(tuple(leaf.shape)))

    def _batch_of(self, tensor: Tensor) -> TrackedBatch | None:
        """Return the batch that the tensor belongs to, or whose memory it shares, or None."""
        where = tensor.untyped_storage().data_ptr() if is_plain(tensor) else 0
        at_hand = self._session.batches.at_hand
        return next((one for one in at_hand if where in one.storages()), None)

    def _warn(self, text: str) -> None:
        if not self._has_warned and self._session.is_main:
            warn_of_gradients(text)
        self._has_warned = True

    # torch.autograd.grad -------------------------------------------------------------------------

    def _over_all_ranks(self, original: Callable[..., tuple[Any, ...]]) -> object:
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            asked = as_list(inputs)  # ``inputs`` may be a generator
            factors = self._factors(as_list(outputs), asked) if self._is_divided() else None
            made = original(outputs, asked, *args, **kwargs)
            if factors is None:
                return made
            both = zip(made, factors, strict=True)
            return tuple([one if one is None or by == 1.0 else one * by for one, by in both])

        return grad

    def _factors(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[float] | None:
        """Return the factors that make each gradient that of the loss over all ranks.

        None if all gradients stay as they are.
        """
        leaves = [self._is_other_leaf(one) for one in inputs]
        loss = outputs[0] if len(outputs) == 1 and isinstance(outputs[0], Tensor) else None
        if loss is None or loss.numel() != 1 or not any(leaves):
            return None
        terms = terms_of(loss)
        if is_sum(terms) or not any(map(_is_mean, terms)):
            return None
        found = [
            self._factor(one, terms, loss) if leaf else 1.0
            for one, leaf in zip(inputs, leaves, strict=True)
        ]
        if None in found:
            self._warn(OF_A_MEAN)
        return [1.0 if one is None else one for one in found]

    def _factor(self, leaf: Tensor, terms: Sequence[Term], loss: Tensor) -> float | None:
        """Return the factor of a leaf's gradient, or None if it is unknown."""
        batch = self._batch_of(leaf)
        if batch is None:
            return None if _is_in(leaf, data_leaves([loss.grad_fn])) else 1.0
        weight = 1.0 if batch.share is None else batch.share.weight
        is_exact = all(_is_mean(term) and _counts(term, batch.rows) for term in terms)
        return (weight or 1.0) / self._session.world.data.parts if is_exact else None

    def _is_other_leaf(self, tensor: object) -> bool:
        return (
            isinstance(tensor, Tensor)
            and tensor.is_leaf
            and not isinstance(tensor, nn.Parameter)
            and is_plain(tensor)
            and not self._is_known(tensor)
        )


def _is_mean(term: Term) -> bool:
    return term.reduction == "mean"


def _counts(term: Term, rows: int) -> bool:
    """Whether a term is a mean over this rank's samples.

    It is not if a mask or ignored targets leave things whose number is equal only by chance.
    """
    number = term.number
    if term.divisors or not isinstance(number, float) or not same(number, rows):
        return False
    return not leaves_some(term.node)


def _is_in(tensor: Tensor, others: Sequence[Tensor]) -> bool:
    return any(one is tensor for one in others)


def leaves_below(roots: Iterable[Any]) -> list[Tensor]:
    """Return the leaves of a graph other than ``nn.Parameter``."""
    return _leaves(nodes_below(roots, NODES_AT_MOST))


def data_leaves(roots: Iterable[Any]) -> list[Tensor]:
    """Return the leaves of a graph that layers use as data, and not as weights."""
    return _leaves(nodes_below(roots, NODES_AT_MOST, _data_of))


def _data_of(node: Any) -> list[Any]:
    place = DATA_ARGUMENT.get(type(node).__name__)
    children = list(children_of(node))
    return children if place is None else children[place : place + 1]


def _leaves(nodes: Iterable[Any]) -> list[Tensor]:
    variables = [getattr(node, "variable", None) for node in nodes]
    return [
        one for one in variables if isinstance(one, Tensor) and not isinstance(one, nn.Parameter)
    ]
