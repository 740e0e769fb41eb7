"""The weights of the ranks' losses in the mean: samples, tokens or what the graph divides by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torchbus.plugin import Context, Share, UsageError

from torchbus_strategy import compat
from torchbus_strategy.batches import counts_of_all, only_evaluate
from torchbus_strategy.graph import is_parameter
from torchbus_strategy.loss import messages
from torchbus_strategy.loss.clamped import Clamps, unless_clamped
from torchbus_strategy.loss.deciding import BySamples, Deciding, host_knows
from torchbus_strategy.loss.reading import (
    is_sum,
    terms_of,
)
from torchbus_strategy.loss.repeated import RepeatedLosses
from torchbus_strategy.loss.term_weights import TermWeights, unique
from torchbus_strategy.loss.terms import (
    HAVE_RATIO,
    MAY_BE_CLAMPED,
    RATIO,
    RATIO_SQUARED,
    UNREPORTED,
    Count,
    Measured,
    Number,
    Scales,
    Term,
    WeightedTerms,
    same,
    spread,
)
from torchbus_strategy.loss.units import SPREAD, Unit
from torchbus_strategy.loss.walks import adds_parameters, is_made_zero
from torchbus_strategy.multi_loader import LossSources
from torchbus_strategy.user_code import warn_of_gradients


class LossWeights:
    """The weights of a session's losses. All ranks call each method.

    Losses are tensors of one element; other shapes have no count.

    Args:
        session: The session whose losses are weighted.
        mode: A value of ``loss_weight=``.
        mean: Averages over ranks what they exchange ahead of a backward. A strategy passes a
            function if a call of ``session.reduce`` might pair with another call.
        sums: Whether a loss that is a plain sum over samples, according to its graph, is summed
            over ranks. Otherwise it counts as a mean.
        is_trained: Whether the gradient of a leaf counts.
    """

    def __init__(
        self,
        session: Context,
        mode: str = "auto",
        mean: Callable[[Tensor], Tensor] | None = None,
        sums: bool = False,
        is_trained: Callable[[Tensor], bool] = is_parameter,
    ) -> None:
        compat.check()
        self._is_trained = is_trained
        self._session = session
        self.mode = mode
        self._sums = sums
        self._may_reduce = mean is None
        self._first = 0  # an id, because a reference to the count would keep the graph alive
        self._has_unit = False
        self._unit = Unit(session)
        self._waits = session.device.type == "cpu"
        self._deciding = Deciding(session.world.data.parts, sums)
        self._clamps = Clamps()
        self.note = ""
        self._said: set[str] = set()
        self._repeated = RepeatedLosses()
        self._each = TermWeights(session, mean or session.reduce)
        self._shared = Share()
        self._sources = LossSources(session)
        self._silent = BySamples(session)
        self._are_gathered = False

    def read(
        self, loss: Tensor | None, expected: float = 0.0, share: Share | None = None
    ) -> list[Term]:
        """Return the terms of a loss of one element, or none if it is weighted by samples.

        ``expected`` is the same as for ``of``.
        """
        if loss is None or self.mode == "samples":
            return []
        rows = self._rows(share or self._session.share, expected)
        return terms_of(loss, rows, self._deciding.looks)

    def of(
        self,
        loss: Tensor | None,
        settles: bool = True,
        expected: float = 0.0,
        terms: list[Term] | None = None,
    ) -> Count:
        """Read the loss's graph, and return what this backward counts.

        Args:
            loss: A tensor of one element.
            settles: Whether the host knows the ranks' numbers before it continues. If it does not,
                as on a GPU, ranks count by the graph once all of them know that one does.
            expected: The average number of samples of a rank, if the share does not have it.
            terms: What ``read`` has returned for the loss.
        """
        if len(self._session.batches.current) > 1:  # each batch has a separate share
            terms = None
        elif terms is None:
            terms = self.read(loss, expected)
        settles = settles or self._waits or self._unit.settles_on_device
        count, self._first = self._usual(terms, expected, settles), 0
        if count is None:
            count = self._look(loss, settles, expected, terms)
            # the same on all ranks: all must separate earlier gradients, or none
            count.isolated = self.mode != "samples"
            self._first = 0 if self._has_unit else id(count)
            self._repeated.note(count)
        return count

    def is_usual(self, count: Count) -> bool:
        """Whether many earlier losses had this count."""
        return count is self._repeated.usual

    def of_number(self, number: float, expected: float) -> Count:
        """Return the count of a loss that is a mean of ``number`` things, as the loop says."""
        self._shared = self._session.share
        count = self._weighted(number / (expected * self._unit.value))
        count.isolated, count.term = True, Term("mean", number)
        return self.take(count)

    def _rows(self, share: Share, expected: float) -> int:
        parts = self._session.world.data.parts
        return round(share.weight * share.count / parts) if share.count else round(expected)

    def _usual(self, terms: list[Term] | None, expected: float, settles: bool) -> Count | None:
        """Return the count of many earlier losses if this one equals them, or None.

        None, too, if the host does not have the loss's numbers.
        """
        session = self._session
        is_known = self._waits or (terms is not None and all(map(host_knows, terms)))
        if terms is None or not is_known or (self._each.gathers and not expected):
            self._repeated.forget()
            return None
        current = session.batches.current
        evaluates = bool(current and current[0].origin.evaluates)
        others = expected, self._unit.value, session.world.data.parts, evaluates, settles
        return self._repeated.count(terms, session.share, others)

    def take(self, count: Count) -> Count:
        """Use a count that the loop or a window has found."""
        self._repeated.forget()
        return self._use(count)

    def _use(self, count: Count) -> Count:
        self._each.let_go()
        self._unit.take(count.term)
        return count

    def by_samples(self, loss: Tensor | None) -> Count:
        """Return the count of a backward that does not communicate, or follows one that did not.

        ``loss`` has one element. The other ranks' counts are unknown, so samples weigh the loss,
        unless it is a sum. Warns if the loss counts something other than samples.
        """
        if self.are_sum(self.read(loss)):
            self._repeated.forget()
            return self.of_sum(loss)
        if self.mode != "samples" and (text := self._silent.look(loss)):
            self._say(text)
        return self.take(Count(self._session.share.weight))

    def agree_on_unit(self, count: Count) -> None:
        """Agree on what one sample counts. All ranks call it once, at the first of windows."""
        self._unit.agree(count)

    def _begin(self, count: Count) -> None:
        """Agree on the unit before the first backward of batches that no loader has counted.

        Otherwise the gradients of tensors that no optimizer holds would be multiplied by the number
        of rows.
        """
        self._first, self._has_unit = 0, True
        if self._session.share.count:
            return
        self.agree_on_unit(Count(0.0) if self._deciding.is_sum else count)
        by = self._unit.value
        count.weight, count.norm, count.total = count.weight / by, count.norm / by, count.total / by

    @property
    def gathers(self) -> bool:
        """Whether the ranks exchange numbers ahead of the next backward; equal on all ranks."""
        return self.mode != "samples" and self._each.gathers

    def weigh_terms(self, count: Count) -> Count:
        """Put weights into the graph for terms that weigh differently.

        All ranks call it before a synchronised backward. It runs one collective in the first
        backwards, and in all later ones if terms are means over different counts.
        """
        if self.is_usual(count):
            return count
        if id(count) == self._first and self.gathers and self._may_reduce:
            self._begin(count)
        terms = count.weighted_terms
        gathers = self.gathers
        weights = self._each.gather(terms, self._deciding.by_row) if gathers else None
        self._are_gathered = weights is not None
        if gathers and self._each.are_by_row:
            self._deciding.note_by_row()
            return self.take(Count(self._session.share.weight))
        self._look_at_constants(terms)
        if self._each.are_unlike:
            self._say(messages.BRANCH.format(1 if terms is None else len(terms.terms)))
        if terms is None or (weights is None and not terms.zipped):
            if not self._sources.is_reported:
                self._say(messages.ZIPPED.format(self._sources.unlike, messages.IN_NO_GRAPH))
            return count
        if not self._said:
            self.note = messages.NOTES["terms" if weights else terms.note]
        return self._multiplied(count, terms, weights or terms.weights)

    def _look_at_constants(self, found: WeightedTerms | None) -> None:
        """Warn of sums over samples that the loop multiplies by a constant and adds to means."""
        terms = [] if found is None or found.zipped else found.terms
        for term, alike, seen in zip(terms, self._each.alike, self._each.constants, strict=False):
            if term.divisors and alike and term.is_over_one is False:
                facts = term.number, term.divisors, term.sizes
                self._say(seen.look(*facts, messages.TIMES_CONSTANT))

    def _multiplied(self, count: Count, terms: WeightedTerms, weights: Sequence[Number]) -> Count:
        self._unit.reset()
        new = Count(1.0, ratio=0.0 if self._are_gathered else count.ratio)
        new.may_be_clamped = float(count.is_clamped) or count.may_be_clamped
        if self._are_gathered:
            new.may_be_clamped = float(self._clamps.may_hide_none(terms))
        if self._are_gathered and new.may_be_clamped:
            self._say(messages.MAY_BE_NONE)
        value = self._each.multiply(terms, weights)
        if value is not None:
            new.weighted_terms, new.weights = terms, weights
        elif not self._deciding.compares:  # otherwise the gradients are not exact either
            self._say(messages.SHOWN_OTHERWISE)
        new.value = terms.loss.detach() * self._session.share.weight if value is None else value
        new.isolated = count.isolated
        return new

    def _look(
        self, loss: Tensor | None, settles: bool, expected: float, read: list[Term] | None
    ) -> Count:
        self._each.let_go()
        self._unit.reset()
        if only_evaluate(self._session.batches.current):
            return Count(1.0)
        parts = self._session.world.data.parts
        self._shared, terms = self._sources.find(loss, self.mode != "samples", expected > 0.0)
        if terms is not None:
            self._deciding.numbers = terms.counts
            ratio = 0.0 if self.mode == "samples" else terms.ratio()
            return Count(self._shared.weight, ratio=ratio, weighted_terms=terms)
        share = self._shared
        rows = self._rows(share, expected)
        may_sync = not expected and (self._sources.is_reported or share.weight > 0.0)
        if read is None or share is not self._session.share:
            read = self.read(loss, expected, share)
        term, ratio, terms = self._find(loss, rows, may_sync, read)
        expected = expected or (share.count / parts if share.count else 1.0)
        if self._sums and self.mode != "samples" and self._deciding.is_sum:
            self.note = self.note or messages.SUM
            return self.of_sum(loss)
        if self._deciding.beside is not None:
            return Count(share.weight, ratio=1.0, weighted_terms=self._deciding.beside)
        if loss is not None and self._is_empty(loss):
            return self._of_empty()
        if loss is None or term is None or term.number is None:
            return Count(share.weight, ratio=UNREPORTED * (not self._sources.is_reported))
        ratio = ratio if self._sources.is_reported else UNREPORTED
        scale = expected * self._unit.value
        count = self._weighted(
            unless_clamped(term, loss) / scale, term.number / scale if term.divisors else 0.0, ratio
        )
        count.weighted_terms, count.term = terms, term
        self._clamps.mark(count, read, loss, rows)
        self._use(count)
        return self._in_time(count, term, settles) if count.counted else count

    def _is_empty(self, loss: Tensor) -> bool:
        """Whether a loss is a zero that reaches no sample, as for a batch without objects."""
        if self.mode == "samples" or not self._deciding.is_empty or loss.numel() != 1:
            return False
        return not loss.item() and is_made_zero(loss, self._is_trained)

    def _of_empty(self) -> Count:
        count = Count(0.0, True)
        count.term = Term("mean", 1.0, (1.0,))
        self._unit.reset()
        return count

    def _in_time(self, count: Count, term: Term, settles: bool) -> Count:
        """Return the count, or one by samples if the host does not wait for other ranks' counts."""
        kind = "divided" if term.divisors else "elements" if term.sizes else "targets"
        self.note = self.note or messages.NOTES[kind]
        return count if settles else self._use(Count(self._shared.weight, True))

    def are_sum(self, terms: Sequence[Term]) -> bool:
        """Whether a loss with these terms is one that is summed over ranks."""
        return self._sums and is_sum(terms)

    def of_sum(self, loss: Tensor | None) -> Count:
        """Return the count of a sum over samples, a tensor of one element.

        The sum counts in full, unless this rank's batch only fills in for missing samples.
        """
        self._each.let_go()
        current = self._session.batches.current
        parts = 1.0 if only_evaluate(current) else float(self._session.world.data.parts)
        share, terms = self._sources.find(loss, False, False)
        if loss is not None and adds_parameters(loss, terms_of(loss)):
            self._say(messages.PENALTY)
        terms = terms and terms._replace(
            weights=[parts if weight else 0.0 for weight in terms.weights]
        )
        return Count(parts if share.weight else 0.0, weighted_terms=terms)

    def _weighted(self, weight: Number, total: Number = 0.0, ratio: float = 0.0) -> Count:
        by_samples = self._shared.weight
        if not isinstance(weight, Tensor) and same(weight, by_samples):
            return Count(by_samples, False, total, ratio)
        return Count(weight if by_samples else 0.0, True, total, ratio)

    def _find(
        self, loss: Tensor | None, rows: int, may_sync: bool, terms: list[Term]
    ) -> tuple[Term | None, float, WeightedTerms | None]:
        self._deciding.is_sum = self._deciding.is_empty = self._deciding.has_sums = False
        self._deciding.beside = None
        if self.mode == "samples" or loss is None:
            return None, 0.0, None
        found = self._deciding.find(loss, terms, rows, self._shared, may_sync, self._each.gathers)
        hidden = self._deciding.hidden
        if hidden is not None and self.mode == "tokens":
            raise UsageError(messages.NO_COUNT.format(", ".join(sorted(hidden)) or "no graph"))
        for text in self._deciding.warnings(found[0], rows):
            self._say(text)
        constants = [] if may_sync else self._each.may_be_of_all(unique(terms))
        if any(constants) and not all(constants):
            self._say(messages.SUM_BESIDE)
        elif any(constants) and adds_parameters(loss, terms):
            self._say(messages.PENALTY)
        for number in self._constants_over_unknown(terms):
            self._say(messages.UNKNOWN_OVER.format(number))
        return found

    def _constants_over_unknown(self, terms: list[Term]) -> list[float]:
        """Return the numbers of samples by which the loop divides terms that can't be read."""
        over = [one for term in terms if term.reduction == "unknown" for one in term.over]
        constants = [one for one in over if not isinstance(one, Tensor | Measured)]
        counts = counts_of_all(self._session) if constants else []
        return [one for one in constants if any(same(one, count) for count in counts)]

    def state_dict(self) -> dict[str, object]:
        """Return the facts about the losses so far, the same on all ranks, for checkpoints.

        A resumed run continues with these facts instead of learning them again.
        """
        mine = {"ratio": self._deciding.ratio, "apart": self._each.differs}
        return mine | self._unit.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the unit and the weights of a checkpoint. All ranks call it."""
        self._deciding.ratio = state["ratio"]
        self._each.differs = state.get("apart", False)
        self._unit.load_state_dict(state)
        self._repeated.forget()

    def have_counted(self) -> None:
        """Note that some rank has counted by a graph, as the ranks have found elsewhere."""
        self._unit.agreed = True

    # After the exchange --------------------------------------------------------------------------

    def is_settled(self, mean: Sequence[float]) -> bool:
        """Whether ``resolve`` would return None, as for many losses before."""
        return self._repeated.is_settled(mean)

    def resolve(self, mean: Sequence[float], windows: bool = False) -> Scales | None:
        """Return the factors for gradients and loss, or None to change nothing.

        ``mean`` is the mean over ranks of what each has sent. It is the same on all ranks.
        """
        if self._repeated.changes_nothing(mean):
            return None
        self._each.let_go()
        if self._are_gathered:
            if mean[MAY_BE_CLAMPED] > 0.0:
                self._say(messages.MAY_BE_NONE)
            return None
        have = mean[HAVE_RATIO]
        if mean[RATIO] < 0.0 or (
            have and spread(mean[RATIO] / have, mean[RATIO_SQUARED] / have) > SPREAD
        ):
            self._unlike(windows)
        alike, odd = self._unit.judge(mean)
        for text in odd:
            self._say(text)
        scales = self._unit.scales(mean, alike, windows)
        if scales is not None:
            self._repeated.changes()
        return scales

    def resolve_on_device(self, mean: Tensor, windows: bool = False) -> Scales | None:
        """Return the factors of ``resolve`` without waiting for the numbers.

        ``mean`` has the shape (``SLOTS``,). The factors are tensors of one element.
        """
        self._each.let_go()
        return None if self._are_gathered else self._unit.scales_on_device(mean, windows)

    def _unlike(self, windows: bool) -> None:
        """Warn of terms that count different things, which was unknown before."""
        text = messages.UNLIKE if windows or self._each.differs else messages.LATE
        self._each.differs |= not windows
        if self._sources.unlike:
            where = messages.IN_WINDOW if windows else messages.IN_NO_GRAPH
            return self._say(messages.ZIPPED.format(self._sources.unlike, where))
        counts = ", ".join(f"{float(number):g}" for number in self._deciding.numbers)
        self._say(text.format(counts or "none"))

    def _say(self, text: str) -> None:
        if text and text[:40] not in self._said:
            self._said.add(text[:40])
            self.note = text
            if self._session.is_main:
                warn_of_gradients(text)
