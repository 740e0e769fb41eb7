"""The weight of each batch in its window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import BackwardCall, Context, Unsupported, warn

from torchbus_accumulate.averages import WindowSums
from torchbus_accumulate.messages import CUT_OFF, UNLIKE
from torchbus_accumulate.position import WindowPosition, expected_samples
from torchbus_accumulate.windows.sums import WindowSum, has_others, reached
from torchbus_strategy.batches import TrackedBatch
from torchbus_strategy.loss.terms import Count, Number, Term
from torchbus_strategy.loss.weights import LossWeights


class WindowEnd:
    """Divides each sum once at the end of its window, even if several backwards add to it.

    If the last backward did not communicate (under ``s.no_sync()``), the ranks add up their counts
    at the step instead.
    """

    def __init__(self, session: Context, optimizers: WindowSums, weights: Weights) -> None:
        self._session = session
        self._optimizers = optimizers
        self._weights = weights
        self._sums: list[WindowSum] = []
        self._is_silent = False

    def begin(self, call: BackwardCall, last: bool) -> None:
        """Called before a backward, after the sums have put back their held gradients."""
        self._is_silent = last and not call.sync
        self._sums = self._held(call) if last else []
        call.sync &= last
        if call.sync:
            self._weights.end(call, self._sums)

    def _held(self, call: BackwardCall) -> list[WindowSum]:
        """Return the sums that hold earlier batches, and that this backward adds to."""
        adding = [one for one in self._optimizers.sums if one.calls and one.is_being_added_to]
        held = reached(call, adding)
        for one in held:
            if one.is_scaled:
                one.undo_scale()
        return held

    def scale_sums(self, call: BackwardCall) -> None:
        """Called after a backward, even if it has failed."""
        if call.count is not None and call.count.left:
            scales = isinstance(call.count.scale, Tensor) or call.count.scale != 1.0
            for one in self._sums:
                if one.counted or call.count.counted or scales:
                    one.apply_scale(call.count.scale)

    def finish(self, one: WindowSum, is_flush: bool) -> None:
        """Called before a real step. With ``is_flush``, no last batch has run its backward."""
        one.finish(self._total(one, is_flush), self._weights.counted and not self._weights.is_sum)
        self._weights.begin_batch()

    def _total(self, one: WindowSum, is_flush: bool) -> float | None:
        """Return the number to divide the gradients by, or None if they have their weight already.

        Ranks communicate if the last backward did not.
        """
        weights = self._weights
        if weights.is_sum:
            return None
        if is_flush or self._is_silent:
            return self._over_ranks(one, 0.0 if is_flush else 1.0)
        return one.weight + weights.factor if one.calls else None

    def _over_ranks(self, one: WindowSum, last: float) -> float:
        """Return the mean over ranks of the held weight plus ``last`` times the last batch's.

        Replicas that come and go can't exchange it. But if weights count samples, the weight of
        each replica is the mean.
        """
        weights = self._weights
        if not self._session.world.divides_anew:
            return float(self._session.reduce(one.mass + weights.mass * last))
        if one.counted or (last and weights.counted):
            raise Unsupported(CUT_OFF)
        return one.weight + weights.factor * last


class Weights:
    """The weight of a backward: its samples divided by the samples expected in the window.

    If the window turns out to have another number of samples, the sum is rescaled before its last
    backward. So the loop sees only the exact gradient.

    A batch may count something else (tokens, by ``s.backward_weight`` or by its loss). Then its
    weight differs from its share of the samples. At the end of the window, the sum is divided by
    the mean of these weights over ranks.

    The attributes belong to the last backward. ``mass`` is ``factor`` times the count of this
    rank's batch. ``whole`` is ``factor`` times the number that all ranks divide by. ``counted`` is
    True if the batch counts something other than samples. ``batch_samples`` is the number of
    samples in the loader's batch.
    """

    def __init__(self, session: Context, position: WindowPosition) -> None:
        plugins = [plugin for _, plugin in session.bus.plugins()]
        said = {getattr(plugin, "loss_reduction", None) for plugin in plugins}
        self._always_sum = self.is_sum = "sum" in said
        self._session = session
        self._position = position
        self._losses = LossWeights(
            session,
            next(
                (plugin.loss_weight for plugin in plugins if hasattr(plugin, "loss_weight")), "auto"
            ),
            sums=said.isdisjoint(("mean", "sum")),
        )
        self._has_unit = False
        self.batch_samples = 1.0
        self.samples = 1.0
        self.expected = 1.0
        self.factor = 1.0
        self._of_rank = 1.0  # this rank's part of the samples, on average
        self.mass: Number = 1.0
        self.whole: Number = 0.0
        self.counted = False
        self._last: float | None = None
        self._has_warned = False

    @property
    def note(self) -> str:
        """Description of what the losses' graphs showed."""
        return self._losses.note

    def saved(self) -> dict[str, object]:
        """Return the state for a checkpoint."""
        return {"has_unit": self._has_unit, "losses": self._losses.state_dict()}

    def put_back(self, expected: float, state: Mapping[str, Any] | None) -> None:
        """Restore the samples expected in an open window, and the state of ``saved``.

        ``state`` is None in checkpoints of the first format.
        """
        self.expected = expected
        if state is not None:
            self._has_unit = state["has_unit"]
            self._losses.load_state_dict(state["losses"])

    def weigh(
        self,
        call: BackwardCall,
        tokens: float | None,
        batch: TrackedBatch | None,
        sums: Sequence[WindowSum],
        first: bool,
        last: bool,
    ) -> float | None:
        """Set the weight of this backward, which may be the window's ``first`` or ``last`` one.

        For the last one, return the number of samples in the window; otherwise, and for losses that
        are sums, return None.
        """
        self.samples = (
            self.batch_samples if batch is not None else float(self._session.share.count or 1)
        )
        shared = self._session.share.count
        self._of_rank = self.samples / (self._session.world.data.parts if shared else 1)
        terms = None
        if tokens is None and not self._always_sum:
            terms = self._losses.read(call.loss, self._of_rank)
        self.is_sum = self._always_sum or (terms is not None and self._losses.are_sum(terms))
        if self.is_sum:
            return None
        if first:
            self.expected = self._expect(batch)
        total = self._total(batch, sums) if last else None
        self.factor = self.samples / (total or self.expected)
        self.count(call, tokens, terms)
        return total

    def count(
        self, call: BackwardCall, tokens: float | None, terms: list[Term] | None = None
    ) -> None:
        """Pass this batch's weight to the strategy; with one process, apply it to the factor."""
        found = call.count = self._count(call, tokens, terms)
        self.mass, self.whole, self.counted = (
            self.factor * found.norm,
            self.factor * found.total,
            found.counted,
        )
        if not isinstance(found.weight, Tensor):
            self._compare(found.weight)
        call.factor *= self.factor if has_others(self._session.world) else self.mass

    def commit(self, one: WindowSum, optimizer: Optimizer) -> None:
        """Commit the gradients of the last backward, instead of a step."""
        one.commit(optimizer, self.factor, self.samples, self.mass, self.whole, self.counted)
        self.begin_batch()

    def _compare(self, weight: float) -> None:
        """Warn if backwards before one step differ in weight, as a batch has only one weight."""
        before, self._last = self._last, weight
        if self._has_warned or before is None or abs(before - weight) <= 1e-6 * abs(before):
            return
        self._has_warned = True
        if self._session.is_main:
            warn(UNLIKE)

    def begin_batch(self) -> None:
        """Called after a step, so that the next backward is not compared with the last one."""
        self._last = None

    def end(self, call: BackwardCall, held: Sequence[WindowSum]) -> None:
        """Called before the backward of the last batch, which adds to the sums in ``held``."""
        if call.count is None:
            return
        count = call.count = call.count.copied()
        count.norm = self.mass + held[0].mass if held else self.mass
        count.total = held[0].with_batch(self.whole) if held else self.whole
        count.counted |= any(one.counted for one in held)
        count.left, count.isolated = bool(held), not held
        if count.counted and not has_others(self._session.world):
            self._divide(call, count, bool(held))

    def _divide(self, call: BackwardCall, count: Count, adds: bool) -> None:
        """Divide by the count, which a strategy does if there are several ranks.

        With ``adds``, the sum is divided after the backward. Otherwise the batch is alone in its
        window and its loss is a mean already, so only the weight of the batch is undone.
        """
        by = count.norm if adds else count.weight
        scale = 1.0 / by if isinstance(by, Tensor) or by else 1.0
        if adds:
            count.scale = scale
        else:
            call.factor = call.factor * scale

    def _count(self, call: BackwardCall, tokens: float | None, terms: list[Term] | None) -> Count:
        """Return what the batch counts.

        At the first backward, all ranks agree on how much one sample counts. From then on, a loop
        in which all samples count the same is weighted by samples.
        """
        if not self._has_unit:
            self._has_unit = True
            self._losses.agree_on_unit(self._read(call, tokens, None))
        return self._read(call, tokens, terms)

    def _read(self, call: BackwardCall, tokens: float | None, terms: list[Term] | None) -> Count:
        if tokens is None:
            return self._losses.of(call.loss, expected=self._of_rank, terms=terms)
        return self._losses.of_number(tokens, self._of_rank)

    def _expect(self, batch: TrackedBatch | None) -> float:
        samples = self.samples or 1.0
        return (
            samples * self._position.size
            if batch is None
            or self._session.world.divides_anew  # a new replica counts its own batches
            else expected_samples(batch, samples, self._position.size)
        )

    def _total(self, batch: TrackedBatch | None, sums: Sequence[WindowSum]) -> float:
        """Return the number of samples in the window that this backward ends.

        It is this batch's number plus the samples of the committed gradients that it adds to.
        """
        committed = [one.samples for one in sums if one.takes_part]
        if committed:
            return self.samples + max(committed)
        # earlier backwards of the window may have failed
        is_alone = self._position.index == 1 or not any(one.calls for one in sums)
        return self.samples if batch is not None and is_alone else self.expected
