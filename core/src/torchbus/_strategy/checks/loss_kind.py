"""Whether a loss is a mean or a sum over samples, read from its graph."""

from __future__ import annotations

from torch import Tensor

from torchbus._compat import saved
from torchbus._loss.graph.reading import terms_of
from torchbus._loss.graph.term import Term
from torchbus._session.context import Context
from torchbus._session.notices import warn_of_gradients


def look_at_first(session: Context, loss: Tensor | None, loss_reduction: str) -> str:
    """Warn at the first backward, on rank 0, if the graph contradicts ``loss_reduction``.

    Returns the warning, or "".
    """
    assert session.job is not None
    if session.job.backwards or not session.is_main or loss is None or loss_reduction == "auto":
        return ""
    saved.check()
    other = "sum" if loss_reduction == "mean" else "mean"
    if {_kind(term) for term in terms_of(loss)} - {""} != {other}:
        return ""
    words = (
        f"the loss looks like a {other} over samples, but is treated as a {loss_reduction}: its"
        f" gradients are {'too small' if other == 'sum' else 'too large'} by the number of ranks."
        f" If so, say loss_reduction={other!r}"
    )
    warn_of_gradients(words)
    return words


def _kind(term: Term) -> str:
    """Return "mean", "sum", or "" for others. A sum may be divided by a number of samples."""
    return term.reduction if term.reduction in ("mean", "sum") and not term.divisors else ""
