"""Windows: real steps at their ends, nothing communicated in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torchbus.plugin import Answer, BackwardCall, Context, LoaderIterator, Taken, hookimpl, inventory

from torchbus_accumulate.optimizers import Optimizers
from torchbus_accumulate.place import schedule
from torchbus_accumulate.place.loop import Place
from torchbus_accumulate.place.position import Position
from torchbus_accumulate.place.steady import Steady
from torchbus_accumulate.schedules import Schedules
from torchbus_accumulate.windows.local_sums import OwnSums
from torchbus_accumulate.windows.saved import refuse_between, restore, state_of
from torchbus_accumulate.windows.skipped import skipped
from torchbus_accumulate.windows.sums import WindowSum
from torchbus_accumulate.windows.weights import Weights


class Windows:
    """Counts batches of the loader that feeds the backwards; in a loop without one, the steps of each optimizer."""

    def __init__(self, session: Context, windows: Mapping[int, int], place: Place) -> None:
        self._session = session
        self._schedule = windows
        self._place = place
        self._position = Position(windows, session.batches)
        self._weights = Weights(session, self._position)
        self._optimizers = Optimizers(session)
        self.own = OwnSums(session, self._optimizers)
        self._schedules = Schedules(session, self._optimizers, self._position)
        self._flushing = False
        self._begun = False
        self._steady: Steady | None = None

    # Which batch -----------------------------------------------------------------------------------------------

    @hookimpl
    def loader_opened(self, iterator: LoaderIterator) -> None:
        if torch.is_grad_enabled():
            iterator.find_last()

    @hookimpl
    def loader_start(self, loader: DataLoader[Any]) -> None:
        """A pass that was left by ``break`` left its window open."""
        if self._position.left or (self._position.is_in(loader) and not self._position.goes_on):
            self._flush()

    @hookimpl
    def loader_end(self, loader: DataLoader[Any]) -> None:
        if self._position.is_in(loader) and not self._position.goes_on:
            self._flush()
            self._place.leave()
            self._position.end_pass()
            for one in self._optimizers.sums:
                one.skipped = False

    @hookimpl(tryfirst=True)
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            self._flush()

    # Backward --------------------------------------------------------------------------------------------------

    def weigh(self, call: BackwardCall, tokens: float | None) -> None:
        """Before each backward: its weight in the window, and whether it ends it."""
        steady = self._steady
        if steady is None or self._place.recent or tokens is not None or not steady.weigh(call):
            self._weigh(call, tokens)

    def _weigh(self, call: BackwardCall, tokens: float | None) -> None:
        if not self._begun:
            self._begin()
        sums = self._optimizers.sums
        taken = self._batch_of_step(self._place.taken, self._place.is_last)
        if taken is not None:
            self._weights.batch_samples = float((taken.share and taken.share.count) or taken.rows)
            first, last = self._position.index == 1, self._position.last
        else:
            first, last = not any(one.calls for one in sums), self._ends_by_steps(sums)
        call.sync &= last
        total = self._weights.weigh(call, tokens, taken, sums, first, last)
        for one in sums:
            one.before_backward(total)
        if last:
            self._weights.end(call, self._held())
        like_this = first and not last and taken is None and tokens is None and len(sums) == 1
        self._steady = Steady(self._session, self._optimizers, self._weights, self._position.size) if like_this else None

    def _held(self) -> list[WindowSum]:
        """The sums that hold earlier batches, and that a backward is about to add to."""
        return [one for one in self._optimizers.sums if one.calls and one.is_being_added_to and not one.settled]

    @hookimpl
    def after_backward(self, call: BackwardCall) -> None:
        if call.count is not None and call.count.left:
            for one in self._held():
                if one.counted or call.count.counted or call.count.scale != 1.0:
                    one.settle(call.count.scale)

    def _begin(self) -> None:
        self._begun = True
        self._optimizers.find()

    def _batch_of_step(self, taken: Taken | None, is_last: bool) -> Taken | None:
        """The batch; the position moves on at its first use."""
        if taken is not None and self._place.is_new(taken):
            self._position.next_batch(taken, is_last)
        return taken

    def _ends_by_steps(self, sums: Sequence[WindowSum]) -> bool:
        """In a loop without a loader."""
        most = self._position.size - 1
        if len(sums) == 1:
            return sums[0].calls >= most
        return any(one.calls >= most and one.is_trained() for one in sums)

    # Step ------------------------------------------------------------------------------------------------------

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is not None and self._is_of_batch(parameters):
            self._optimizers.leave_alone(optimizer)
        elif optimizer is not None:
            self._optimizers.add(optimizer)

    def _is_of_batch(self, parameters: list[Tensor]) -> bool:
        """A perturbation of these very samples, say: a row for each of them, in no module."""
        batch = self._place.at_hand
        if batch is None or any(not one.dim() or len(one) != batch.rows for one in parameters):
            return False
        return not inventory.models_of(parameters)

    @hookimpl
    def before_zero_grad(self, optimizer: Optimizer) -> bool:
        one = self._optimizers.of.get(id(optimizer))
        return one is not None and one.before_zero_grad()

    @hookimpl(tryfirst=True)
    def step_called(self, optimizer: Optimizer, closure: Callable[[], Any] | None, run: Callable[..., Any]) -> Answer | None:
        one = self._optimizers.of.get(id(optimizer))
        if one is None or self._flushing:
            return None
        if self._ends_step(one, closure):
            one.skipped = False
            if closure is None:
                self._finish(one)
            return None
        if not self._optimizers.checked:
            self._optimizers.refuse_foreign_scaler(optimizer)
        answer = skipped(closure)
        self._weights.commit(one, optimizer)
        one.skipped = True
        return answer

    def _ends_step(self, one: WindowSum, closure: Callable[[], Any] | None) -> bool:
        place = self._place
        taken = place.taken if closure is None else self._batch_of_step(place.at_hand, place.ends_pass())  # its backward is still to come
        return self._position.last if taken is not None else one.calls + 1 >= self._position.size

    @hookimpl(tryfirst=True)
    def before_optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None) -> None:
        if closure is None:
            self.after_closure(optimizer)

    @hookimpl(tryfirst=True)
    def after_closure(self, optimizer: Optimizer) -> None:
        one = self._optimizers.of.get(id(optimizer))
        if one is not None:
            self._finish(one)

    def _finish(self, one: WindowSum) -> None:
        if self._weights.is_sum or not one.calls:
            return one.finish(None)
        if not self._flushing:
            return one.finish(one.weight + self._weights.factor)
        one.finish(float(self._session.reduce(one.mass)))

    def _flush(self) -> None:
        """What is left of a window that nothing else ended is stepped now."""
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

    # What goes by steps ----------------------------------------------------------------------------------------

    @hookimpl
    def skip_scheduler(self, scheduler: LRScheduler) -> bool | None:
        one = self._optimizers.of.get(id(getattr(scheduler, "optimizer", None)))
        if one is not None and self._position.left:
            self._flush()
            one.skipped = False
        if one is not None:
            self._schedules.step(scheduler, one.skipped)
        return True if one is not None and one.skipped else None

    @hookimpl
    def skip_clipping(self) -> bool | None:
        """In the middle of a window the loop clips nothing: the gradients of a window are clipped at its end."""
        if not self._optimizers.sums:
            return None
        ends = self._position.last if self._place.recent else self._ends_by_steps(self._optimizers.sums)
        return None if ends else True

    # State -----------------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        sums, weights = self._optimizers.sums, self._weights
        refuse_between(sums, self._position)
        found = {"position": self._position.state_dict(), "sums": [state_of(one, self._session) for one in sums]}
        return found | {"expected": weights.expected, "weights": weights.saved(), "schedules": self._schedules.saved()}

    def put_back(self, state: Mapping[str, Any]) -> None:
        self._begin() if len(self._optimizers.sums) < len(state["sums"]) else None
        restore(self._optimizers.sums, state["sums"])
        self._position.load_state_dict(state["position"])
        self._weights.put_back(state["expected"], state.get("weights"))
        self._schedules.put_back(state.get("schedules", []))
        self._steady = None

    # Explain ---------------------------------------------------------------------------------------------------

    @hookimpl
    def describe(self, thing: Any) -> str | None:
        known = isinstance(thing, Optimizer) and id(thing) in self._optimizers.of
        return f"one real step for {self._position.size} calls of step()" if known else None

    def words(self) -> list[str]:
        how = "losses are sums, and are added up" if self._weights.is_sum else self._weights.note or "gradients are weighted by samples"
        sizes = schedule.words(self._schedule, self._position.size)
        line = f"batches per real step: {sizes}; step(), zero_grad(), schedulers and clipping wait for the end of the window, "
        return [f"{line}{how}, nothing is communicated in between", *self._schedules.words()]
