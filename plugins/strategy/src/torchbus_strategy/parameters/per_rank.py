"""Tensors that an optimizer steps, but that belong to the samples of one rank.

Examples are a perturbation of the batch, or a latent code for each sample.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from torchbus.plugin import Context, Share, Unsupported

from torchbus_strategy.checks.replicas import weighted_sum
from torchbus_strategy.collectives import extremes
from torchbus_strategy.parameters.rank0_values import gather_summaries
from torchbus_strategy.user_code import warn_of_gradients

ALIKE = (
    "{}: a tensor of shape {}, which no module owns, has a row for each sample of the batch, and so"
    " is treated as this rank's own: it is not synchronised. If all ranks share it, call"
    " s.adopt(tensor) before you make its optimizer"
)
UNLIKE = (
    "{}: a tensor of shape {}, which no module owns and which differs between ranks, gets rank 0's"
    " values and is averaged in backward. If it is a weight, call s.adopt(tensor) before you make"
    " its optimizer; if it belongs to this rank's samples, give it a row for each of them"
)
OUTLIVES = (
    "a tensor of shape {}, which no module owns, had a row for each sample when its optimizer was"
    " made, and so is each rank's own, but several batches train it. If all ranks share it, call"
    " s.adopt(tensor) before you make its optimizer. If not, make a new one for each batch"
)

NUMBERS = 3
"""How many numbers a rank reports about a tensor.

They are a checksum of its shape; whether it has a row for each sample of this rank's batch, or the
rank has no sample; and the weighted sum of its values.
"""


def _judge(reported: Sequence[tuple[float, float]]) -> tuple[bool, str]:
    """Whether a tensor belongs to each rank's samples, and the text of a warning if in doubt.

    ``reported`` has the least and the greatest value over ranks of each number.
    """
    shape, has_rows, values = reported
    mine = bool(has_rows[0])
    equal = all(least == greatest for least, greatest in (shape, values))
    is_doubtful = mine is equal and shape[0] == shape[1]
    return mine, (ALIKE if mine else UNLIKE) if is_doubtful else ""


class PerRankTensors:
    """Tensors of one rank's samples, whose values differ between ranks.

    Their gradient is that of the loss over all ranks, as in one process with the whole batch.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._tensors: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._warned: set[str] = set()
        self._fed_by: dict[int, int] = {}
        self.found_any = False
        self.note = ""

    def __contains__(self, tensor: Tensor) -> bool:
        return self._tensors.get(id(tensor)) is tensor

    def tensors(self) -> list[Tensor]:
        """Return the tensors that are alive, of any shape and dtype."""
        # listing a weak dictionary, even an empty one, takes 10 us
        return list(self._tensors.values()) if self._tensors else []

    def find(self, loose: Sequence[Tensor], what: str) -> list[Tensor]:
        """Find the tensors that belong to this rank's samples, among those that no module owns.

        They have a row for each sample of the batch, on all ranks, once a divided loader has
        yielded one. All ranks call it with the same tensors. ``what`` names their optimizer.
        """
        share, parts = self._session.share, self._session.world.data.parts
        if not loose or not share.count or parts == 1:
            return []
        if any(theirs != [len(loose)] for _, theirs in gather_summaries(what, [len(loose)])):
            return []  # copying rank 0's values will raise
        numbers = [number for tensor in loose for number in _view(tensor, share, parts)]
        reported = extremes(numbers, self._session.world_size)
        judged = [
            _judge(reported[NUMBERS * place : NUMBERS * (place + 1)]) for place in range(len(loose))
        ]
        found = [tensor for tensor, (mine, _) in zip(loose, judged, strict=True) if mine]
        for text in (ALIKE, UNLIKE):
            self._warn_of(
                what,
                text,
                [one for one, (_, doubt) in zip(loose, judged, strict=True) if doubt is text],
            )
        if found:
            self.note = (
                f"{what} steps tensors that have a row for each sample of this rank's batch: these"
                " are not synchronised"
            )
        if found and parts != self._session.world_size:
            raise Unsupported(
                f"{what}: a tensor of shape {tuple(found[0].shape)} belongs to the samples of a"
                " batch that the ranks of a node compute together: use strategy='ddp'; if it is a"
                " weight, call s.adopt(tensor) before you make its optimizer"
            )
        self.found_any |= bool(found)
        self._tensors.update({id(tensor): tensor for tensor in found})
        self._fed_by = {key: self._fed_by.get(key, 0) for key in self._tensors}
        self._fed_by |= {id(tensor): 0 for tensor in found}
        return found

    def _warn_of(self, what: str, text: str, tensors: list[Tensor]) -> None:
        if tensors:
            more = f" (and {len(tensors) - 1} more)" if len(tensors) > 1 else ""
            self._warn(text.format(what, f"{tuple(tensors[0].shape)}{more}"))

    def _warn(self, text: str) -> None:
        if self._session.is_main and text not in self._warned:
            self._warned.add(text)
            warn_of_gradients(text)

    def _look_at_age(self, alive: Sequence[Tensor]) -> None:
        """Warn of a tensor that outlives its batch, and so may not belong to its samples."""
        feeding = max((one.serial for one in self._session.batches.current), default=0)
        for tensor in alive:
            first = self._fed_by[id(tensor)] = self._fed_by.get(id(tensor)) or feeding
            if first != feeding:
                self._warn(OUTLIVES.format(tuple(tensor.shape)))

    @contextmanager
    def over_all_ranks(self, others: Sequence[Tensor] = ()) -> Iterator[None]:
        """Divide what a backward in the block adds to the gradients by the number of ranks.

        This applies to the gradients of these tensors and of ``others``. The average over ranks
        does the same to all other gradients.
        """
        alive = self.tensors()
        self._look_at_age(alive)
        alive += others
        before = [tensor.grad for tensor in alive]
        for tensor in alive:
            tensor.grad = None
        try:
            yield
        finally:
            for tensor, retained in zip(alive, before, strict=True):
                made = None if tensor.grad is None else tensor.grad / self._session.world_size
                tensor.grad = (
                    retained if made is None else made if retained is None else retained + made
                )


def may_be_of_samples(tensor: Tensor, rows: int) -> bool:
    """Whether dim 0 of a tensor may hold the samples of a batch of ``rows``.

    A tensor that has a gradient already belongs to an earlier batch.
    """
    return tensor.dim() > 0 and len(tensor) == rows and tensor.grad is None


def _view(tensor: Tensor, share: Share, parts: int) -> tuple[float, float, float]:
    rows = round(share.weight * share.count / parts)
    return (
        float(zlib.crc32(repr(tuple(tensor.shape)).encode())),
        float(not rows or may_be_of_samples(tensor, rows)),
        weighted_sum(tensor.detach()),
    )
