"""The loop's calls of ``step``: one is real at the end of a window, the others commit gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Answer, Context, Unsupported, hookimpl

from torchbus_accumulate.averages import WindowSums
from torchbus_accumulate.messages import AGAIN, OUTLIVES
from torchbus_accumulate.position import BatchUse, WindowPosition
from torchbus_accumulate.windows.changes import WindowChanges
from torchbus_accumulate.windows.sums import WindowSum, check, has_others, parameters_of
from torchbus_accumulate.windows.weights import Weights, WindowEnd
from torchbus_strategy.batches import TrackedBatch
from torchbus_strategy.graph import hold
from torchbus_strategy.parameters.per_rank import may_be_of_samples

Closure = Callable[[], object]
NO_RESULT = Answer()


class RealSteps:
    """Decides which calls are real steps. In a loop without a loader, counts the calls."""

    def __init__(
        self,
        session: Context,
        optimizers: WindowSums,
        place: BatchUse,
        position: WindowPosition,
        weights: Weights,
        ending: WindowEnd,
        changes: WindowChanges,
    ) -> None:
        self._session = session
        self._optimizers = optimizers
        self._place = place
        self._position = position
        self._weights = weights
        self._ending = ending
        self._changes = changes
        self._adopted: dict[int, Tensor] = {}
        self._made_in: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._flushing = False

    def advance(self, batch: TrackedBatch, is_last: bool) -> None:
        """Move the position to the batch at its first use."""
        if self._place.is_new(batch):
            self._position.next_batch(batch, is_last)

    def end_by_count(self, sums: Sequence[WindowSum]) -> bool:
        """Whether a window without a loader ends with the next step."""
        most = self._position.size - 1
        if len(sums) == 1:
            return sums[0].calls >= most
        return any(one.calls >= most and one.is_trained() for one in sums)

    def flush(self) -> None:
        """Step now with the rest of an unfinished window."""
        self._flushing = True
        try:
            for one in self._optimizers.sums:
                optimizer = one.optimizer()
                if one.calls and optimizer is not None:
                    optimizer.step()
                    optimizer.zero_grad()
        finally:
            self._flushing = False
            self._position.end_window()

    # Events --------------------------------------------------------------------------------------

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is None:
            self._adopted |= {id(one): one for one in parameters}
            return
        # from the optimizer and not ``parameters``, as a strategy may have replaced some
        if self._is_of_batch(parameters_of(optimizer)):
            self._optimizers.ignore(optimizer)
            self._made_in[optimizer] = 0
        else:
            hold(parameters)
            self._optimizers.add(optimizer)

    def _is_of_batch(self, tensors: list[Tensor]) -> bool:
        """Whether the parameters belong to the present samples, as an adversarial perturbation.

        Such parameters have a row for each sample, and no module holds them.
        """
        batch = self._place.at_hand
        if batch is None or not all(may_be_of_samples(one, batch.rows) for one in tensors):
            return False
        is_common = any(id(one) in self._adopted for one in tensors)
        return not is_common and not objects.models_of(tensors)

    def _refuse_in_later_batch(self, optimizer: Optimizer) -> None:
        """Raise Unsupported if an ignored optimizer steps in more than one batch.

        Then the rows of its parameters do not stand for the samples of a batch.
        """
        batch = self._place.latest
        if batch is None or optimizer not in self._made_in:
            return
        first = self._made_in[optimizer] = self._made_in[optimizer] or batch.serial
        if first != batch.serial:
            raise Unsupported(OUTLIVES.format(type(optimizer).__name__))

    @hookimpl
    def before_zero_grad(self, optimizer: Optimizer) -> bool:
        one = self._optimizers.of.get(id(optimizer))
        return one is not None and one.before_zero_grad()

    @hookimpl(tryfirst=True)
    def step_called(
        self, optimizer: Optimizer, closure: Closure | None, run: Callable[..., object]
    ) -> Answer | None:
        one = self._optimizers.of.get(id(optimizer))
        if one is None:
            self._refuse_in_later_batch(optimizer)
            return None
        if self._flushing:
            self._ending.finish(one, is_flush=True)
            return None
        one.refuse_batches()
        if self._is_real(one, closure):
            one.skipped = False
            self._refuse_second(one, optimizer)
            if closure is None:
                self._ending.finish(one, is_flush=False)
            return None
        if not self._optimizers.checked:
            self._optimizers.refuse_foreign_scaler(optimizer)
        answer = skipped(closure)
        check(one, self._optimizers.sums, has_others(self._session.world))
        self._refuse_second(one, optimizer)
        self._changes.before_commit(one, optimizer)
        self._weights.commit(one, optimizer)
        one.skipped = True
        return answer

    def _refuse_second(self, one: WindowSum, optimizer: Optimizer) -> None:
        """Raise Unsupported at a second step on one batch with separate gradients."""
        batch, position = self._place.latest, self._position
        if batch is None or not one.is_new or (position.last and position.index == 1):
            return
        if one.of_batch == batch.serial:
            raise Unsupported(AGAIN.format(type(optimizer).__name__))
        one.of_batch = batch.serial

    def _is_real(self, one: WindowSum, closure: Closure | None) -> bool:
        place = self._place
        batch = place.latest if closure is None else place.at_hand
        if closure is not None and batch is not None:  # the backward is still to come
            self.advance(batch, place.ends_pass())
        if batch is not None:
            return self._position.last
        return one.calls + 1 >= self._position.size and (closure is not None or one.is_new)

    @hookimpl(tryfirst=True)
    def gradients_ready(self, optimizer: Optimizer) -> None:
        one = self._optimizers.of.get(id(optimizer))
        if one is not None and not self._flushing:
            self._ending.finish(one, is_flush=False)


def skipped(closure: Closure | None) -> Answer:
    """Run the closure as a real step does, and return its value."""
    if closure is None:
        return NO_RESULT
    with torch.enable_grad():
        return Answer(closure())
