"""How much the gradient of each rank and of each batch counts.

It counts by samples, or by what the loss's graph has counted. A rank weighs its gradient by its
count over a unit on which all ranks agree. The mean of these weights rides with what ranks exchange
in each backward. So no collective comes before the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from torchbus._batches.share import Share
from torchbus._batches.zipped import Behind
from torchbus._compat import saved
from torchbus._loss import messages
from torchbus._loss.apart import Apart
from torchbus._loss.count import HAVE_RATIO, RATIO, RATIO_SQUARED, UNTOLD, Count, Scales, spread
from torchbus._loss.deciding import BySamples, Deciding
from torchbus._loss.graph.reading import is_sum, terms_of
from torchbus._loss.graph.term import Number, Term, same
from torchbus._loss.term_weights import TermWeights
from torchbus._loss.unit import SPREAD, Unit, unless_clamped
from torchbus._session.context import Context
from torchbus._session.notices import warn_of_gradients
from torchbus.errors import UsageError


class LossWeights:
    """The weights of a session's losses. All ranks use it alike.

    ``mean``: averages over ranks what they exchange ahead of a backward. A strategy passes its own
    way if ``session.reduce`` might meet another collective. ``sums``: a loss that is a plain sum
    over samples, as its graph says, is summed over ranks; without, it counts as a mean.
    """

    def __init__(
        self,
        session: Context,
        mode: str = "auto",
        mean: Callable[[Tensor], Tensor] | None = None,
        sums: bool = False,
    ) -> None:
        saved.check()
        self._session = session
        self.mode = mode
        self._sums = sums
        self._may_reduce = mean is None
        self._first = 0  # an id: a count that is held would keep the graph alive
        self._has_unit = False
        self._unit = Unit(session)
        self._waits = session.device.type == "cpu"
        self._deciding = Deciding()
        self.note = ""
        self._said: set[str] = set()
        self._each = TermWeights(session, mean or session.reduce)
        self._shared = Share()
        self._behind = Behind(session)
        self._silent = BySamples(session)
        self._have_met = False

    def of(self, loss: Tensor | None, settles: bool = True, expected: float = 0.0) -> Count:
        """Read the loss's graph, and return what this backward counts.

        ``settles``: the host will know the ranks' numbers before it goes on. On a GPU it does not;
        then ranks count by the graph once all of them know that one does. ``expected``: average
        number of samples of a rank, if the share does not say.
        """
        count = self._of(loss, settles, expected)
        # alike on all ranks: all must keep earlier gradients apart, or none
        count.anew = self.mode != "samples"
        self._first = 0 if self._has_unit else id(count)
        return count

    def of_number(self, number: float, expected: float) -> Count:
        """Return the count of a loss that is a mean of ``number`` things, as the loop says."""
        self._shared = self._session.share
        count = self._weighted(number / (expected * self._unit.value))
        count.anew, count.term = True, Term("mean", number)
        return self.take(count)

    def take(self, count: Count) -> Count:
        """Use a count that the loop or a window has found."""
        self._each.let_go()
        self._unit.take(count.term)
        return count

    def by_samples(self, loss: Tensor | None) -> Count:
        """Return the count of a backward that communicates nothing, or follows such a one.

        Nobody knows what the other ranks count. Warns if the loss does not count samples.
        """
        if self.is_sum(loss):
            return self.of_sum(loss)
        if self.mode != "samples" and (text := self._silent.look(loss)):
            self._say(text)
        return self.take(Count(self._session.share.weight))

    def agree_on_unit(self, count: Count) -> None:
        """Agree on what one sample counts. All ranks call it once, at the first of windows."""
        self._unit.agree(count)

    def _begin(self, count: Count) -> None:
        """Agree on the unit before the first backward of batches that no loader has counted.

        Without, the gradients of tensors that no optimizer holds would be multiplied by the rows.
        """
        self._first, self._has_unit = 0, True
        if self._session.share.count:
            return
        self.agree_on_unit(Count(0.0) if self._deciding.is_sum else count)
        by = self._unit.value
        count.weight, count.norm, count.total = count.weight / by, count.norm / by, count.total / by

    @property
    def meets(self) -> bool:
        """Whether the ranks exchange numbers ahead of the next backward; alike on all of them."""
        return self.mode != "samples" and self._each.meets

    def meet(self, count: Count) -> Count:
        """Put weights into the graph for terms that weigh differently, before a synchronised
        backward.

        All ranks call it alike. It is one collective in the first backwards, and for good if terms
        are means over different counts. Otherwise it is none.
        """
        if id(count) == self._first and self.meets and self._may_reduce:
            self._begin(count)
        apart = count.apart
        weights = self._each.meet(apart) if self.meets else None
        self._have_met = weights is not None
        if apart is None or (weights is None and not apart.zipped):
            if not self._behind.is_told:
                self._say(messages.ZIPPED.format(self._behind.unlike, messages.IN_NO_GRAPH))
            return count
        if not self._said:
            self.note = messages.WORDS["terms" if weights else "zipped"]
        return self._multiplied(count, apart, weights or apart.weights)

    def _multiplied(self, count: Count, apart: Apart, weights: Sequence[Number]) -> Count:
        self._unit.forget_own()
        new = Count(1.0, ratio=0.0 if self._have_met else count.ratio)
        value = self._each.multiply(apart, weights)
        new.value, new.anew = (
            apart.loss.detach() * self._session.share.weight if value is None else value,
            count.anew,
        )
        return new

    def _of(self, loss: Tensor | None, settles: bool, expected: float) -> Count:
        self._each.let_go()
        self._unit.forget_own()
        if self._session.batches.only_evaluate:
            return Count(1.0)
        parts = self._session.world.data.parts
        self._shared, apart = self._behind.find(loss, self.mode != "samples", expected > 0.0)
        if apart is not None:
            self._deciding.numbers = apart.counts
            ratio = 0.0 if self.mode == "samples" else apart.ratio()
            return Count(self._shared.weight, ratio=ratio, apart=apart)
        share = self._shared
        rows = round(share.weight * share.count / parts) if share.count else round(expected)
        may_meet = not expected and (self._behind.is_told or share.weight > 0.0)
        term, ratio, apart = self._find(loss, rows, may_meet)
        expected = expected or (share.count / parts if share.count else 1.0)
        if self._sums and self.mode != "samples" and self._deciding.is_sum:
            self.note = self.note or messages.SUM
            return self.of_sum(loss)
        if loss is not None and self._is_nothing(loss):
            return self._of_nothing()
        if loss is None or term is None or term.number is None:
            return Count(share.weight, ratio=UNTOLD * (not self._behind.is_told))
        ratio = ratio if self._behind.is_told else UNTOLD
        scale = expected * self._unit.value
        count = self._weighted(
            unless_clamped(term, loss) / scale, term.number / scale if term.divisors else 0.0, ratio
        )
        count.apart, count.term = apart, term
        self.take(count)
        return self._in_time(count, term, settles) if count.counted else count

    def _is_nothing(self, loss: Tensor) -> bool:
        """Whether it is a zero that reaches no sample: a branch for a batch without objects."""
        if self.mode == "samples" or not self._deciding.is_empty or loss.numel() != 1:
            return False
        return not loss.item()

    def _of_nothing(self) -> Count:
        count = Count(0.0, True)
        count.term = Term("mean", 1.0, (1.0,))
        self._unit.forget_own()
        return count

    def _in_time(self, count: Count, term: Term, settles: bool) -> Count:
        """The count, or one by samples if the host does not wait for what other ranks count."""
        kind = "divided" if term.divisors else "elements" if term.sizes else "targets"
        self.note = self.note or messages.WORDS[kind]
        if settles or self._waits or self._unit.settles_on_device:
            return count
        return self.take(Count(self._shared.weight, True))

    def is_sum(self, loss: Tensor | None) -> bool:
        """Whether the loss is one that is summed over ranks."""
        return self._sums and self.mode != "samples" and loss is not None and is_sum(terms_of(loss))

    def of_sum(self, loss: Tensor | None) -> Count:
        """Return the count of a sum over samples.

        It is in full, unless this rank's batch only fills in for missing samples.
        """
        self._each.let_go()
        parts = float(1 if self._session.batches.only_evaluate else self._session.world.data.parts)
        share, apart = self._behind.find(loss, False, False)
        apart = apart and apart._replace(
            weights=[parts if weight else 0.0 for weight in apart.weights]
        )
        return Count(parts if share.weight else 0.0, apart=apart)

    def _weighted(self, weight: Number, total: Number = 0.0, ratio: float = 0.0) -> Count:
        by_samples = self._shared.weight
        if not isinstance(weight, Tensor) and same(weight, by_samples):
            return Count(by_samples, False, total, ratio)
        return Count(weight if by_samples else 0.0, True, total, ratio)

    def _find(
        self, loss: Tensor | None, rows: int, may_meet: bool
    ) -> tuple[Term | None, float, Apart | None]:
        self._deciding.is_sum = self._deciding.is_empty = False
        if self.mode == "samples" or loss is None:
            return None, 0.0, None
        found = self._deciding.find(loss, rows, self._shared, may_meet and self._each.meets)
        hidden = self._deciding.hidden
        if hidden is not None and self.mode == "tokens":
            raise UsageError(messages.NO_COUNT.format(", ".join(sorted(hidden)) or "no graph"))
        for text in self._deciding.warnings(found[0], rows):
            self._say(text)
        return found

    def state_dict(self) -> dict[str, object]:
        """Return what the losses have shown so far, alike on all ranks, for checkpoints.

        A resumed run must not learn it anew.
        """
        own = {"ratio": self._deciding.ratio, "apart": self._each.apart}
        return own | self._unit.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._deciding.ratio = state["ratio"]
        self._each.apart = state.get("apart", False)
        self._unit.load_state_dict(state)

    def have_counted(self) -> None:
        """Note that some rank has counted by a graph, as the ranks have found elsewhere."""
        self._unit.agreed = True

    # After the ranks have told each other --------------------------------------------------------

    def settle(self, mean: Sequence[float], windows: bool = False) -> Scales | None:
        """Return the factors for gradients and loss, or None to change nothing.

        ``mean``: the mean over ranks of what each has sent, the same on all of them.
        """
        self._each.let_go()
        if self._have_met:
            return None
        have = mean[HAVE_RATIO]
        if mean[RATIO] < 0.0 or (
            have and spread(mean[RATIO] / have, mean[RATIO_SQUARED] / have) > SPREAD
        ):
            self._unlike(windows)
        alike, odd = self._unit.judge(mean)
        for text in odd:
            self._say(text)
        return self._unit.scales(mean, alike, windows)

    def settle_on_device(self, mean: Tensor, windows: bool = False) -> Scales | None:
        """Return the same factors, if nobody waits for the numbers."""
        self._each.let_go()
        return None if self._have_met else self._unit.scales_on_device(mean, windows)

    def _unlike(self, windows: bool) -> None:
        """Warn of terms that count different things, which was unknown before."""
        text = messages.UNLIKE if windows or self._each.apart else messages.LATE
        self._each.apart |= not windows
        if self._behind.unlike:
            where = messages.IN_WINDOW if windows else messages.IN_NO_GRAPH
            return self._say(messages.ZIPPED.format(self._behind.unlike, where))
        counts = ", ".join(f"{float(number):g}" for number in self._deciding.numbers)
        self._say(text.format(counts or "none"))

    def _say(self, text: str) -> None:
        if text[:40] not in self._said:
            self._said.add(text[:40])
            self.note = text
            if self._session.is_main:
                warn_of_gradients(text)
