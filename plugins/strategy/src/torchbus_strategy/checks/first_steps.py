"""Checks of the first steps: the kind of loss, normalised weights, a strategy's average."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import Module
from torchbus.plugin import Context, DataPlace, PluginError, RanksDiverged, Unsupported, an

from torchbus_strategy import compat
from torchbus_strategy.backward.header import RAW_LOSS
from torchbus_strategy.groups import divides_samples
from torchbus_strategy.loss.reading import terms_of
from torchbus_strategy.loss.terms import Term, same
from torchbus_strategy.user_code import warn_of_gradients


def look_at_first(session: Context, loss: Tensor | None, loss_reduction: str) -> str:
    """Warn at the first backward, on rank 0, if the graph contradicts ``loss_reduction``.

    Returns the warning, or "".
    """
    assert session.job is not None
    if session.job.backwards or not session.is_main or loss is None or loss_reduction == "auto":
        return ""
    compat.check()
    other = "sum" if loss_reduction == "mean" else "mean"
    rows = session.share.weight * session.share.count / session.world.data.parts
    if {_kind(term, rows) for term in terms_of(loss)} - {""} != {other}:
        return ""
    message = (
        f"the loss looks like a {other} over samples, but is treated as a {loss_reduction}: its"
        f" gradients are {'too small' if other == 'sum' else 'too large'} by the number of ranks."
        f" If so, pass loss_reduction={other!r}"
    )
    warn_of_gradients(message)
    return message


def _kind(term: Term, rows: float) -> str:
    """Return "mean", "sum", or "" for others.

    A sum may be divided by a number of samples, and a mean multiplied by this rank's ``rows``.
    """
    if any(not isinstance(one, Tensor) and same(one * rows, 1.0) for one in term.over):
        return ""
    return term.reduction if term.reduction in ("mean", "sum") and not term.divisors else ""


BY_FREQUENCY = (
    "scale_grad_by_freq=True of {} in {}: each rank divides a row's gradient by how often its own"
    " share of the batch has the row, where one process divides by how often the whole batch has"
    " it. Remove the option to train like one process"
)


def refuse_renormalised(session: Context, models: Iterable[Module]) -> None:
    """Raise Unsupported for trained embeddings with ``max_norm``.

    Their weights would differ between ranks without a message. Embeddings with
    ``scale_grad_by_freq`` cause a warning.
    """
    for model in models if divides_samples(session.world) else ():
        for name, table in model.named_modules():
            if not isinstance(table, nn.Embedding | nn.EmbeddingBag):
                continue
            if not table.weight.requires_grad:
                continue
            if table.scale_grad_by_freq and session.is_main:
                warn_of_gradients(BY_FREQUENCY.format(name or "itself", type(model).__name__))
            if table.max_norm is not None:
                raise Unsupported(
                    f"max_norm={table.max_norm} of {type(table).__name__}"
                    f" {name or 'itself'} in {type(model).__name__}: each rank would shrink only"
                    " the rows that its own samples use. Leave max_norm out, and shrink all rows"
                    " after each step, under torch.no_grad():"
                    f" weight.div_((weight.norm({table.norm_type:g}, 1, keepdim=True)"
                    f" / {table.max_norm}).clamp(min=1))"
                )


class SameLoss:
    """The ``HeaderWatch`` of ranks that all see the same batch.

    ``ranks`` and ``batch`` are the words for them in the error.
    """

    input_sum = 0.0

    def __init__(
        self, strategy: str, ranks: str = "the ranks", batch: str = "the whole batch"
    ) -> None:
        self._strategy, self._ranks, self._batch = strategy, ranks, batch

    def look(self, mean: Sequence[float], sent: Sequence[float]) -> None:
        """Raise RanksDiverged if the losses differ by more than rounding."""
        mine, shared = sent[RAW_LOSS], mean[RAW_LOSS]
        differs = abs(shared - mine) > 1e-3 * abs(mine) + 1e-30
        if differs or math.isnan(shared) > math.isnan(mine):
            raise RanksDiverged(
                f"strategy={self._strategy!r}: {self._ranks} had different losses (their mean is"
                f" {shared:g}, this one's {mine:g}), but each must see {self._batch}. Give"
                " them the same data: seed each generator, and do not read the rank or the time"
            )


RETURNED = (
    "{}.average returned {}: it must replace each tensor by its mean over ranks, in place"
    " (tensor.copy_(mean)), and return nothing"
)
WRONG = (
    "{}.average made {:g} of the numbers 0 to {} of the ranks, whose mean is {:g}: it must replace"
    " each tensor, small ones too, by its mean over ranks, in place and in the tensor's own dtype"
)


class TriedAverage:
    """Tries ``average`` of strategy ``name`` at its first call, on a tensor whose mean is known.

    ``data`` is this rank's part of the data.
    """

    def __init__(
        self, average: Callable[[list[Tensor]], object], name: str, data: DataPlace
    ) -> None:
        self._average, self._name, self._data = average, name, data
        self._is_tried = False

    def __call__(self, tensors: list[Tensor]) -> None:
        """Average ``tensors``, of any shape and dtype, in place. All ranks call it."""
        mine = [] if self._is_tried else [torch.full_like(tensors[0][:1], self._data.part)]
        returned = self._average([*tensors, *mine])
        if returned is not None:
            raise PluginError(RETURNED.format(self._name, an(type(returned).__name__)))
        for number in mine:
            self._check(float(number))
        self._is_tried = True

    def _check(self, found: float) -> None:
        last = self._data.parts - 1
        if abs(found - last / 2) > 1e-3 * (last + 1):
            raise PluginError(WRONG.format(self._name, found, last, last / 2))
