"""One quorum before each step, and one commit decision after its averaging."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torchbus.plugin import Answer, BackwardCall, Context, LoaderIterator, Unsupported, hookimpl

from torchbus_ft.averaging import average_held
from torchbus_ft.live import Live, Undo
from torchbus_ft.local import PeriodicAveraging
from torchbus_ft.passes import PassCounter
from torchbus_ft.replicas import ReplicaLink
from torchbus_strategy.elastic import ElasticOrder, elastic_order
from torchbus_strategy.parameters import averaging

UNUSED_OPTIONS = (
    "strategy='ft' averages gradients in loss.backward() only, and these came another way"
    " (torch.autograd.grad): a replica that goes would leave the others with half a step. Call"
    " loss.backward() before optimizer.step()"
)


class Commits:
    """Makes or drops each step of the quorum, from one request for a batch to the next.

    Several optimizers may step in it. The samples count as used if the first of them steps.
    ``dropped`` counts the verdicts to drop a step, because a replica has left.
    """

    hears_trials = False

    def __init__(
        self, session: Context, replicas: ReplicaLink, passes: PassCounter, live: Live
    ) -> None:
        assert session.job is not None
        self._session = session
        self._job = session.job
        self._replicas = replicas
        self._passes = passes
        self._live = live
        self._open = self._averaged = self._decided = self._healed = self._take_back = False
        self._steps_now = True
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self.local: PeriodicAveraging | None = None
        self._averages = False
        self._backwards = 0
        self.dropped = 0
        live.on_load = self._loaded

    def averaged(self) -> None:
        """Ask for a verdict at the next step: gradients were averaged, or the average failed."""
        self._averaged = True

    def _loaded(self) -> None:
        self._healed, self._take_back = True, False

    # The start of a step -------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def batch_wanted(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        order = elastic_order(iterator.order)
        if order is None:
            return
        if self.local is not None and self._end_of_pass(order):
            self.local.average()
        if self._open and not self._decided:
            return
        if self._take_back:
            self._take_back = False
            self._passes.take_back()
        if order.has_more():
            self._begin()

    def _end_of_pass(self, order: ElasticOrder) -> bool:
        """Whether independent steps end here, because the pass has no more batches."""
        return self.local is not None and self.local.steps > 0 and not order.has_more()

    @hookimpl
    def before_zero_grad(self, optimizer: Optimizer) -> None:
        if not self._passes.reads and (not self._open or optimizer in self._stepped):
            self._begin()

    @hookimpl(tryfirst=True)
    def before_backward(self, call: BackwardCall) -> None:
        others = [one for one in self._live.optimizers if one not in self._stepped]
        if not self._open or (not self._passes.reads and self._stepped and not others):
            self._begin()
            if self._healed:
                call.weight = 0.0  # its forward ran with the old state

    def _begin(self) -> None:
        """Agree with the other replicas on who takes part in the step."""
        before = self._session.world.data
        self._open, self._averaged, self._decided, self._healed = True, False, False, False
        self._steps_now = True
        self._stepped.clear()
        self._replicas.sync()
        if self._session.world.data != before or self._healed:
            self._passes.take_back()
        self._backwards = self._job.backwards
        if self.local is not None:
            self.local.begin()
        self._buffers = [(one, one.detach().clone()) for one in self._live.buffers()]

    # The verdict ---------------------------------------------------------------------------------

    @hookimpl  # after an accumulation window that is open, before a scaler that steps itself
    def step_called(
        self, optimizer: Optimizer, closure: Callable[[], object] | None, run: Callable[..., object]
    ) -> Answer | None:
        if not self._session.captures(optimizer):
            return None
        self._stepped.add(optimizer)
        if closure is None:
            self._average_held(optimizer)
            return None if self._verdict() else Answer(None)
        undo = Undo(optimizer, self._session, self._live)
        result = run(closure)
        if not self._verdict():
            undo.restore()
        return Answer(result)

    def _average_held(self, optimizer: Optimizer) -> None:
        """Average gradients of a window that ``break`` ended before a synchronised backward."""
        if self.local is None and self._live.gradients is not None:
            self._averages = True
            try:
                self._live.gradients.before_step.average_now(optimizer)
            finally:
                self._averages = False

    def average_held(self, parameters: Sequence[Tensor], weight: float) -> None:
        """Average gradients that no synchronised backward has made. All ranks call it.

        Raises Unsupported outside of ``step_called``, where the verdict would come too late.
        """
        if self.local is not None:
            return averaging.average(parameters, weight)
        if not self._averages:
            raise Unsupported(UNUSED_OPTIONS)
        average_held(self._replicas, parameters, weight)
        self.averaged()

    def _verdict(self) -> bool:
        """Return whether to step. Without new averages, the last verdict holds."""
        if self._averaged:
            self.decide()
        return self._steps_now

    def decide(self) -> bool:
        """Ask all ranks of this replica for a verdict on the step, and drop it if one failed."""
        self._averaged = False
        self._steps_now = self._replicas.commit()
        if not self._decided and self._steps_now:
            self._passes.commit()
        elif not self._decided:
            self._take_back = True
        self._decided = True
        if self._steps_now:
            self._backwards = self._job.backwards
        else:
            self._drop()
        return self._steps_now

    @torch.no_grad()
    def _drop(self) -> None:
        """Undo what the step has changed, so that this replica equals those that did not count it.

        Clears the gradients, and restores buffers, the count of backwards, and local steps.
        """
        self.dropped += 1
        if self.local is not None:
            self.local.restore()
        self._job.backwards = self._backwards
        for one, before in self._buffers:
            one.data.copy_(before)
        for parameter in self._live.parameters:
            parameter.grad = None

    @hookimpl(trylast=True)  # after accumulation, which counts the calls
    def skip_scheduler(self, scheduler: LRScheduler) -> bool | None:
        return None if self._steps_now else True
