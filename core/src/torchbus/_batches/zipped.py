"""Batches of several loaders in one step, whose shares differ: which of them each term of the loss is a mean over, as its graph shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchbus._batches.share import Share
from torchbus._batches.taken import Taken, is_plain
from torchbus._loss.graph import Term, terms_of
from torchbus._loss.term_weights import Apart, of_batches, unique

if TYPE_CHECKING:
    from torchbus._session.context import Context

NODES_AT_MOST = 20_000


class Behind:
    """The batches behind a loss. ``unlike``: the weights of those of several loaders, in words, "" where all weigh the same. ``is_told``: the
    graph tells which of them each term reads."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self.unlike = ""
        self.is_told = True

    def find(self, loss: Tensor | None, needs_counts: bool, in_window: bool) -> tuple[Share, Apart | None]:
        """The share of the batch that a loss is a mean over; or its terms, where they read batches of several loaders whose shares differ."""
        share, fed = self._session.share, apart(self._session.batches.feeding)
        self.unlike, self.is_told = "", True
        if not fed or loss is None:
            return share, None
        self.unlike = ", ".join(f"{one.share.weight:.3g}" for one in fed if one.share is not None)
        terms = unique(terms_of(loss))
        fit = not in_window and not (needs_counts and any(term.number is None for term in terms))
        found = sources(terms, fed, self._session.world.data.parts) if fit else None
        self.is_told = found is not None
        if found is None:
            return share, None
        shares = [one.share or share for one in found]
        if len({one.weight for one in shares}) == 1:
            return shares[0], None
        return share, of_batches(loss, terms, found, shares)


def apart(feeding: Sequence[Taken]) -> list[Taken]:
    """The batches that feed a backward, the last of each loader, where it matters which of them a term reads; else none."""
    if len(feeding) < 2:
        return []
    shared = sorted((one for one in feeding if one.share is not None), key=lambda one: one.serial)
    last = list({id(one.origin.source()): one for one in shared}.values())
    return last if len({one.share.weight for one in last if one.share is not None}) > 1 else []


def sources(terms: Sequence[Term], fed: list[Taken], parts: int) -> list[Taken] | None:
    """The batch behind each term, or one for all that it reads together; None where a term's can't be told.

    A graph shows the tensors that it has saved; where a term has saved none (the loop computes with copies), its number of rows does.
    ``parts``: those that the global batch has.
    """
    nodes = {term.node for term in terms}
    if not terms or None in nodes:
        return None
    found = [_source(term, fed, nodes - {term.node}, parts) for term in terms]
    if found.count(None) == 1:
        _by_elimination(terms, found, fed)
    return None if None in found else found  # type: ignore[return-value]


def _by_elimination(terms: Sequence[Term], found: list[Taken | None], fed: list[Taken]) -> None:
    """The one term that is left reads the one batch that is left, if it has as many rows."""
    place, left = found.index(None), [one for one in fed if one not in found]
    if len(left) == 1 and left[0].rows == rows_of(terms[place]):
        found[place] = left[0]


def _source(term: Term, fed: list[Taken], others: set[Any], parts: int) -> Taken | None:
    storages = _saved(term.node, others)
    if storages is None:
        return None
    read = [one for one in fed if not storages.isdisjoint(one.storages())]
    length = rows_of(term)
    fits = [one for one in fed if one.rows == length]
    if len({one.share for one in read or fits}) == 1:
        only = (read or fits)[0]
        return only if only in fits or not fits else None
    both = read or fed
    if length == sum(one.rows for one in both) and all(one.share is not None and one.share.weight for one in both):
        return _together(both, parts)
    fits = [one for one in fits if one in both]
    return fits[0] if len({one.share for one in fits}) == 1 else None


def rows_of(term: Term) -> int:
    """The length of dim 0 of what a term reduces, 0 if it has none."""
    target = getattr(term.node, "_saved_target", None)
    sizes = term.sizes or (() if target is None else tuple(target.shape))
    return sizes[0] if sizes else 0


def _together(both: list[Taken], parts: int) -> Taken:
    """Batches that the loop has put into one."""
    rows, count = sum(one.rows for one in both), sum(one.share.count for one in both if one.share is not None)
    whole = Taken(both[0].origin, both[0].number, Share(rows * parts / count if count else 1.0, count=count), None)
    whole.rows = rows
    return whole


def _saved(root: Any, others: set[Any]) -> set[int] | None:
    """Where the memory begins of all tensors that the graph below a term has saved; None if the graph leads through another term, or can't
    be looked through."""
    found: set[int] = set()
    waiting, seen = [root], {root}
    while waiting:
        node = waiting.pop()
        if node in others or len(seen) > NODES_AT_MOST:
            return None
        try:
            found.update(tensor.untyped_storage().data_ptr() for tensor in _tensors(node) if isinstance(tensor, Tensor) and is_plain(tensor))
        except RuntimeError:  # a graph that was used already: backward itself will say so
            return None
        following = {child for child, _ in node.next_functions if child is not None} - seen
        seen |= following
        waiting += following
    return found


def _tensors(node: Any) -> list[Any]:
    saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_") and not name.endswith(("_sizes", "_strides", "_size"))]
    lists = [value for value in saved if isinstance(value, list | tuple)]
    own = getattr(node, "saved_tensors", ())  # of an autograd.Function
    return [*saved, *own, *[value for values in lists for value in values]]
