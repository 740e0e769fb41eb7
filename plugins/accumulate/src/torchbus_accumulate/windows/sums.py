"""The gradient that one optimizer has accumulated in a window so far."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import BackwardCall, Unsupported, UsageError, World
from torchbus.tree import as_list

from torchbus_accumulate.messages import ASSIGNED, BETWEEN, FAILED, SHARED, TWICE, UNCLEARED
from torchbus_accumulate.windows.committed import HeldGradients
from torchbus_strategy.graph import nodes_below
from torchbus_strategy.loss.gradients import scale_all
from torchbus_strategy.loss.terms import Number


def reached(call: BackwardCall, sums: Sequence[WindowSum]) -> list[WindowSum]:
    """Return the sums with a parameter in the graph, or all sums if there is none."""
    if len(sums) < 2:
        return list(sums)
    leaves = _leaves(as_list(call.tensors))
    found = [one for one in sums if not leaves.isdisjoint(map(id, one.parameters()))]
    return found or list(sums)


def has_others(world: World) -> bool:
    """Whether a step involves other processes: other ranks, or replicas that come and go."""
    return world.world_size > 1 or world.divides_anew


def check(one: WindowSum, sums: Sequence[WindowSum], is_shared: bool) -> None:
    """At a skipped step, raise Unsupported if its gradients can't be added up."""
    if is_shared and one.is_assigned:
        raise Unsupported(ASSIGNED.format(_name(one)))
    if len(sums) < 2:
        return
    mine = set(map(id, one.parameters()))
    for other in sums:
        if other is not one and other.calls and not mine.isdisjoint(map(id, other.parameters())):
            raise Unsupported(SHARED.format(_name(other), _name(one)))


def _name(one: WindowSum) -> str:
    return type(one.optimizer()).__name__


def _leaves(roots: Sequence[Any]) -> set[int]:
    """Return the ids of the tensors that autograd accumulates gradients for."""
    starts = [root.grad_fn if isinstance(root, Tensor) else root.node for root in roots]
    return {id(node.variable) for node in nodes_below(starts) if hasattr(node, "variable")}


COMMITTED, ASIDE, ZEROED, IN_PLACE = range(4)


class WindowSum:
    """The gradients that the loop's calls of ``step`` have committed.

    They wait here for the gradients of the next batch. A backward after ``zero_grad`` adds to them
    in place. A backward before ``zero_grad`` is for another optimizer (a generator's loss reaches
    the discriminator). Then the committed gradients are set aside, so that it can't change them.

    ``weight`` is the committed fraction of the window, and ``samples`` its number of samples.
    ``mass`` is this fraction weighted by what the loss counts, which differs from ``weight`` if
    ``counted``. ``whole`` is the fraction weighted by what all ranks divide by, or 0.0 if that is
    not known. ``of_batch`` is the serial number of the batch of the latest step with new gradients.
    ``gradient`` is the sum of the smallest parameter's gradient after the latest backward, if it
    was read. ``is_scaled`` is True if the gradients are already multiplied by ``_scale_of``.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.weight = 0.0
        self.samples = 0.0
        self.mass: Number = 0.0
        self.whole: Number = 0.0
        self.counted = self.is_scaled = False
        self.calls = self.of_batch = 0
        self.skipped = False
        self.gradient: complex | None = None
        self._held = HeldGradients()
        self._present = PresentGradients()
        self._scale_of: Number = 1.0
        self._state = ZEROED
        self._touched = self._zeroes_twice = self._zeroes = False

    def parameters(self) -> list[Tensor]:
        optimizer = self.optimizer()
        return [] if optimizer is None else parameters_of(optimizer)

    def gradients(self) -> list[Tensor]:
        """Return the present gradients of the parameters. None is left out."""
        return [one.grad for one in self.parameters() if one.grad is not None]

    def begin(self, is_other_batch: bool) -> None:
        """Record that a loop without ``zero_grad`` clears gradients by hand before a new batch."""
        self._held.would_be_cleared = is_other_batch and not self._zeroes

    def note_batches(self, call: BackwardCall, sums: Sequence[WindowSum]) -> None:
        """Called when a backward of another batch begins.

        If the gradients of the batch before are still there, the loop itself accumulates.
        """
        if self._present.are_left and self in reached(call, sums):
            self._present.of_batches |= any(bool(one.any()) for one in self.gradients())

    def refuse_batches(self) -> None:
        """At a step, raise Unsupported if the loop has added up gradients of several batches."""
        if self._present.of_batches:
            raise Unsupported(TWICE.format(_name(self)))

    def is_trained(self) -> bool:
        return any(parameter.requires_grad for parameter in self.parameters())

    @property
    def takes_part(self) -> bool:
        """Whether the next backward adds to the committed gradients."""
        return self.calls > 0 and (self._state in (ZEROED, IN_PLACE) or self._cleared())

    def before_backward(self, total: float | None, is_other_batch: bool) -> None:
        """Prepare for a backward, of the same batch as the last backward or of another one.

        ``total`` is the number of samples in the window if this backward ends it, and else None.
        Committed gradients that the backward adds to are rescaled to ``total``.
        """
        present = self._present
        present.is_new = present.are_left = True
        if present.are_over and (is_other_batch or not self.is_scaled):
            present.add_to(self.gradients())
        if self._state == ZEROED and self.calls:
            self._put_back(total)
        elif self._state != COMMITTED:
            self._touched |= self._state != ASIDE
        elif self.calls:
            self._before_uncleared(total)

    def _before_uncleared(self, total: float | None) -> None:
        """Prepare for a backward if the loop has not called ``zero_grad`` since its step."""
        self._held.check_untouched()
        if self._cleared():
            self._put_back(total)
        else:
            self._held.clear_parameters()
            self._state = ASIDE

    def before_zero_grad(self) -> bool:
        """Called when the loop clears gradients. The committed gradients remain held.

        Returns True if there are any. Then the parameters' gradients are already None.
        """
        self._present.clear()
        if self._touched:
            self._zeroed_after_backward()
        if self.calls:
            for parameter in self.parameters():
                parameter.grad = None
        self._state, self._zeroes = ZEROED, True
        return self.calls > 0

    def _zeroed_after_backward(self) -> None:
        if self.calls and not self._zeroes_twice:
            raise Unsupported(FAILED if self._present.has_failed else BETWEEN)
        self._zeroes_twice, self._touched = True, False

    def commit(
        self,
        optimizer: Optimizer,
        weight: float,
        samples: float,
        mass: Number,
        whole: Number,
        counted: bool,
    ) -> None:
        """Hold the gradients, instead of a step. Does nothing if there are no new gradients."""
        self._present.refuse_mixed()
        if not self.is_new:
            return
        if self.calls and self._state != IN_PLACE:
            self._held.merge()
        self._held.take(parameters_of(optimizer))
        self.weight += weight
        self.samples += samples
        self.mass = self.mass + mass
        self.whole = self.with_batch(whole)
        self.counted |= counted
        self.calls += 1
        self._state, self._touched = COMMITTED, False
        self._present.commit()

    def with_batch(self, whole: Number) -> Number:
        """Return the sum of ``self.whole`` and a batch's ``whole``; 0.0 if either is not known."""
        if not isinstance(whole, Tensor) and whole == 0.0:
            return 0.0
        is_known = not self.calls or isinstance(self.whole, Tensor) or self.whole != 0.0
        return self.whole + whole if is_known else 0.0

    def apply_scale(self, scale: Number) -> None:
        """After the last backward of a window, multiply its gradients by ``scale``."""
        self.is_scaled = self._present.are_over = True
        self._scale_of = scale
        self._scale(scale)

    def undo_scale(self) -> None:
        """Undo ``apply_scale``, before another backward of the last batch adds to the gradients."""
        self.is_scaled = self._present.are_over = False
        self._scale(1.0 / self._scale_of)

    def finish(self, total: float | None, counted: bool) -> None:
        """Before a real step, merge all gradients of the window, and divide them by ``total``.

        If ``total`` is None, the gradients already have their weight. ``counted`` is True if the
        last batch is weighted by what its loss counts, and not by samples.
        """
        present, counted = self._present, counted or self.counted
        present.refuse_mixed()
        if self.calls and self._state != IN_PLACE:
            present.refuse_separate(counted)
            self._held.merge()
        if total and (self.calls or present.is_new) and not self.is_scaled:
            self._scale(1.0 / total)
        if self.calls:
            self.drop()
        present.finish(self.gradients(), counted)
        self.is_scaled = False
        self._state, self._touched = COMMITTED, False

    def backward_failed(self) -> None:
        """Called after a backward that raised. It may have added a part of its gradients."""
        self._present.has_failed = self._touched

    def _scale(self, factor: Number) -> None:
        if isinstance(factor, Tensor) or abs(factor - 1.0) > 1e-9:
            scale_all(self.gradients(), factor)

    def drop(self) -> None:
        """Release the committed gradients, and reset the window."""
        self._held.drop()
        self.weight = self.samples = self.mass = self.whole = 0.0
        self.counted = False
        self.calls = 0
        self._state, self._touched = COMMITTED, False

    @property
    def is_being_added_to(self) -> bool:
        """Whether a backward has added to committed gradients, and no step has come since."""
        return self._state == IN_PLACE

    @property
    def is_new(self) -> bool:
        """Whether there are new gradients to commit."""
        return self._present.is_new or self.is_assigned

    @property
    def is_assigned(self) -> bool:
        """Whether the loop has set gradients without a backward."""
        if self._present.is_new:
            return False
        found = self.gradients()
        return not self._held.has_all(found) and not self._present.are_of_last_step(found)

    def committed(self) -> list[Tensor | None]:
        """Return the committed gradient of each parameter, or None, in the parameter's shape."""
        return self._held.of(self.parameters())

    def restore(self, saved: Mapping[str, Any], gradients: list[Tensor | None]) -> None:
        """Commit a checkpoint's gradients, as after a call of ``zero_grad``.

        ``saved`` has the numbers. Raises UsageError if the number of parameters differs.
        """
        mine = self.parameters()
        if len(mine) != len(gradients):
            raise UsageError(
                f"this checkpoint has gradients of {len(gradients)} parameters, and the optimizer"
                f" has {len(mine)}. Create the optimizer as in the run that wrote it"
            )
        weight, mass = saved["weight"], saved.get("mass", saved["weight"])
        self.calls, self.weight, self.samples = saved["calls"], weight, saved["samples"]
        self.mass, self.whole = mass, saved.get("whole", 0.0)
        self.counted = abs(mass - weight) > 1e-9 * weight
        self._held.load(mine, gradients)
        self._held.clear_parameters()
        self._state, self._touched = ZEROED, False

    def _put_back(self, total: float | None) -> None:
        if total is not None:
            self._rescale(total)
        self._held.put_back(as_copies=self._zeroes_twice)
        self._state, self._touched = IN_PLACE, True

    def _rescale(self, total: float) -> None:
        scale = self.samples / total / self.weight if self.weight else 1.0
        if abs(scale - 1.0) > 1e-12:
            self._held.scale(scale)
            self.weight *= scale
            self.mass, self.whole = self.mass * scale, self.whole * scale

    def _cleared(self) -> bool:
        """Whether the loop has set gradients to None by hand, or by ``model.zero_grad()``."""
        return self._state == COMMITTED and self._held.are_cleared()


class PresentGradients:
    """The current gradients of an optimizer's parameters, and where they come from.

    ``is_new`` is True if a backward came after the last step, and ``has_failed`` if this backward
    raised. ``are_left`` is True if, since that backward, the loop has not cleared the gradients.
    ``of_batches`` is True if they are sums over several batches.

    ``are_over`` is True if the gradients belong to a finished window and are weighted by counts. If
    a backward then adds to them, they are mixed and can't be weighted.
    """

    def __init__(self) -> None:
        self.is_new = self.has_failed = self.are_over = self._are_mixed = False
        self.are_left = self.of_batches = False
        self._last: weakref.ref[Tensor] | None = None  # a gradient of the last real step

    def add_to(self, found: Sequence[Tensor]) -> None:
        """Called when a backward of another window is about to add to the gradients in ``found``.

        They may be zeros, which do no harm.
        """
        self.are_over = self._are_mixed = any(bool(gradient.any()) for gradient in found)

    def clear(self) -> None:
        """Called when the loop clears the gradients."""
        self.are_over = self._are_mixed = self.are_left = self.of_batches = False

    def commit(self) -> None:
        """Called when a step was skipped."""
        self.is_new = self.has_failed = self.are_left = self.of_batches = False

    def refuse_separate(self, counted: bool) -> None:
        """Raise Unsupported if new gradients, apart from the held ones, are ``counted``."""
        self._are_mixed = counted and self.is_new
        self.refuse_mixed()

    def finish(self, found: Sequence[Tensor], counted: bool) -> None:
        """Called at a real step."""
        self.are_over = counted
        self._last = weakref.ref(found[0]) if found else None
        self.is_new = self.has_failed = self.are_left = self.of_batches = False

    def refuse_mixed(self) -> None:
        """Raise Unsupported if a backward has added to gradients of an earlier window."""
        if self._are_mixed:
            raise Unsupported(UNCLEARED)

    def are_of_last_step(self, found: Sequence[Tensor]) -> bool:
        """Whether the gradients of the last real step are still in place."""
        last = self._last and self._last()
        return any(gradient is last for gradient in found)


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    groups = optimizer.param_groups
    return list(
        groups[0]["params"] if len(groups) == 1 else chain(*[one["params"] for one in groups])
    )
