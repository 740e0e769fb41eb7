"""Batches of several loaders in one step, whose shares differ.

The loss's graph shows which of them each term is a mean over.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import Node
from torchbus.plugin import Context, Share

from torchbus_strategy import compat
from torchbus_strategy.batches import TrackedBatch, is_plain
from torchbus_strategy.graph import nodes_below
from torchbus_strategy.loss.reading import terms_of
from torchbus_strategy.loss.term_weights import of_batches, unique
from torchbus_strategy.loss.terms import Term, WeightedTerms
from torchbus_strategy.loss.walks import leaves_some

NODES_AT_MOST = 20_000


class LossSources:
    """The batches behind a loss.

    ``unlike`` lists the weights of batches from several loaders; it is "" if all weigh the same.
    ``is_reported`` says that the graph shows which of these batches each term reads.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self.unlike = ""
        self.is_reported = True

    def find(
        self, loss: Tensor | None, needs_counts: bool, in_window: bool
    ) -> tuple[Share, WeightedTerms | None]:
        """Return the share of the batch that a loss is a mean over, or its terms.

        It returns terms if they read batches of several loaders whose shares differ.
        """
        share, used = self._session.share, last_of_each_loader(self._session.batches.current)
        self.unlike, self.is_reported = "", True
        if not used or loss is None:
            return share, None
        self.unlike = ", ".join(f"{one.share.weight:.3g}" for one in used if one.share is not None)
        terms = unique(terms_of(loss))
        fit = not in_window and not (needs_counts and any(term.number is None for term in terms))
        found = sources(terms, used, self._session.world.data.parts) if fit else None
        self.is_reported = found is not None
        if found is None:
            return share, None
        shares = [one.share or share for one in found]
        if len({one.weight for one in shares}) == 1:
            return shares[0], None
        return share, of_batches(loss, terms, found, shares)


def last_of_each_loader(current: Sequence[TrackedBatch]) -> list[TrackedBatch]:
    """Return the last batch of each loader that feeds a backward.

    The list is empty if all weigh the same.
    """
    if len(current) < 2:
        return []
    shared = sorted((one for one in current if one.share is not None), key=lambda one: one.serial)
    last = list({id(one.origin.source()): one for one in shared}.values())
    return last if len({one.share.weight for one in last if one.share is not None}) > 1 else []


def sources(
    terms: Sequence[Term], used: list[TrackedBatch], parts: int
) -> list[TrackedBatch] | None:
    """Return the batch behind each term, or one for all if they read it together.

    None if a term's batch is unknown. A graph shows the tensors that it has saved. If a term has
    saved no tensor of a batch (the loop computes with copies), its number of rows decides.
    ``parts`` is the number of parts of the global batch.
    """
    if not terms or any(term.node is None for term in terms):
        return None
    nodes = {term.reduced_by for term in terms}
    found = [_source(term, used, nodes - {term.reduced_by}, parts) for term in terms]
    if found.count(None) == 1:
        _by_elimination(terms, found, used)
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def _by_elimination(
    terms: Sequence[Term], found: list[TrackedBatch | None], used: list[TrackedBatch]
) -> None:
    """Give the one remaining batch to the one remaining term, if it has the same number of rows."""
    place, left = found.index(None), [one for one in used if one not in found]
    if len(left) == 1 and left[0].rows == rows_of(terms[place]) and not _selects(terms[place]):
        found[place] = left[0]


def _source(
    term: Term, used: list[TrackedBatch], others: set[Node], parts: int
) -> TrackedBatch | None:
    storages = _saved(term.reduced_by, others)
    if storages is None:
        return None
    read = [one for one in used if not storages.isdisjoint(one.storages())]
    if _selects(term):  # its number of rows equals that of a batch only by chance
        return read[0] if len({one.share for one in read}) == 1 else None
    length = rows_of(term)
    fits = [one for one in used if one.rows == length]
    if len({one.share for one in read or fits}) == 1:
        only = (read or fits)[0]
        return only if only in fits or not fits else None
    both = read or used
    if length == sum(one.rows for one in both) and all(
        one.share is not None and one.share.weight for one in both
    ):
        return _together(both, parts)
    fits = [one for one in fits if one in both]
    return fits[0] if len({one.share for one in fits}) == 1 else None


def _selects(term: Term) -> bool:
    return leaves_some(term.reduced_by)


def rows_of(term: Term) -> int:
    """Return the length of dim 0 of what a term reduces, or 0."""
    target = getattr(term.node, compat.TARGET, None)
    sizes = term.sizes or (() if target is None else tuple(target.shape))
    return sizes[0] if sizes else 0


def _together(both: list[TrackedBatch], parts: int) -> TrackedBatch:
    """Return one batch for several batches that the loop has joined."""
    rows, count = (
        sum(one.rows for one in both),
        sum(one.share.count for one in both if one.share is not None),
    )
    whole = TrackedBatch(
        both[0].origin,
        both[0].number,
        Share(rows * parts / count if count else 1.0, count=count),
        None,
    )
    whole.rows = rows
    return whole


def _saved(root: Node, others: set[Node]) -> set[int] | None:
    """Return the memory addresses of all tensors that the graph below a term has saved.

    None if the graph leads through another term, or can't be walked.
    """
    found: set[int] = set()
    for count, node in enumerate(nodes_below([root])):
        if node in others or count > NODES_AT_MOST:
            return None
        try:
            found.update(
                tensor.untyped_storage().data_ptr()
                for tensor in _tensors(node)
                if isinstance(tensor, Tensor) and is_plain(tensor)
            )
        except RuntimeError:  # the graph was used already: backward itself reports it
            return None
    return found


def _tensors(node: Node) -> list[object]:
    held = [getattr(node, name) for name in compat.tensor_names(node)]
    lists = [value for value in held if isinstance(value, list | tuple)]
    mine = getattr(node, "saved_tensors", ())  # of an autograd.Function
    return [*held, *mine, *[value for values in lists for value in values]]
