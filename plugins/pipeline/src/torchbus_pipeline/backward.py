"""``backward`` under the pipeline: it runs the stages' backwards, and compares the ranks."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import BackwardCall, Context, RanksDiverged, Unsupported, hookimpl

from torchbus_pipeline.calls import LayerCalls
from torchbus_pipeline.cut import mark_of
from torchbus_pipeline.divergence import CheckedBarrier, PipelineRanks
from torchbus_pipeline.later import Later
from torchbus_pipeline.later_backward import LaterBackward, batch_of
from torchbus_pipeline.models import CutModels
from torchbus_strategy.backward import engine as strategy_engine
from torchbus_strategy.backward import header as strategy_header
from torchbus_strategy.backward import loss_counts
from torchbus_strategy.backward.header import INPUT, PROGRESS, agrees, constants_agree, numbers
from torchbus_strategy.checks import divergence, first_steps
from torchbus_strategy.checks.constants import Constants
from torchbus_strategy.compat import buffers, is_view
from torchbus_strategy.loss.gradients import isolated_gradients
from torchbus_strategy.loss.intermediate_values import Part, kind_of, weigh_parts, writable_parts
from torchbus_strategy.loss.terms import Count, Number
from torchbus_strategy.parameters import averaging

DISCOVERY_BACKWARDS = 3
FAILED = INPUT
ORDER = (
    "at backward call {} the ranks do not have the same order of the data, or are not at the same"
    " place in it ({})"
)


class PipelineBackward:
    """Implements ``backward`` under the pipeline."""

    def __init__(
        self,
        session: Context,
        models: CutModels,
        calls: LayerCalls,
        barrier: CheckedBarrier,
        replicas: PipelineReplicas,
        counts: loss_counts.LossCounts,
        later: LaterBackward,
    ) -> None:
        assert session.job is not None
        self._later = later
        self._session, self._job, self._barrier = session, session.job, barrier
        self._models, self._calls, self._replicas, self._counts = models, calls, replicas, counts
        self._constants = Constants(session, models.optimizer_settings)
        self._parts = session.world.data.parts
        self._steps = 0

    @hookimpl
    def after_optimizer_step(self) -> None:
        self._steps += 1

    @hookimpl
    def run_backward(self, call: BackwardCall, engine: strategy_engine.BackwardFunction) -> None:
        refuse(call)
        self._models.refuse_uncut()
        number = self._job.backwards + 1
        self._job.wait_in("backward", number)
        try:
            self._sync(f"backward {number}", call.loss)
            if isinstance(call.loss, Later) and call.weight is None and call.count is None:
                call.weight = self._session.share.weight  # the loss is a mean or sum over samples
            count = self._counts.weigh_terms(self._counts.of(call, lambda: self._replicas.remain))
            trained = self._models.trained()
            # before the backward, which frees the graph that gives their weights
            parts, weighed = self._parts_of_loss(call, count)
            with isolated_gradients(trained) if count.isolated else nullcontext():
                error = self._run(call, engine, count, trained)
                header = self._exchange_header(call, count, error, parts, weighed)
                if call.sync and self._parts > 1:
                    self._replicas.average(trained)
            scale = self._counts.scale_gradients(header, count, trained) if call.sync else 1.0
            self._give_loss(header, call, float(scale))
            if parts:
                header.give_parts(parts, float(scale))
            self._end(call)
        finally:
            self._job.go_on()

    def _sync(self, what: str, loss: Tensor | None) -> None:
        """Wait for all ranks. The ranks of one pipeline must have the same batch."""
        batch = f" of {batch_of(loss)}" if isinstance(loss, Later) else ""
        if batch and self._parts > 1:
            self._barrier.sync_in_pipeline(what + batch)
        self._barrier.sync(what if self._parts > 1 else what + batch)

    def _run(
        self,
        call: BackwardCall,
        engine: strategy_engine.BackwardFunction,
        count: Count,
        trained: list[Tensor],
    ) -> Exception | None:
        """Run the graph, and the stages inside it. Returns the error of this rank."""
        tensors, gradients = call.start(1.0 if count.is_zero else count.weight)
        saved = [one.grad for one in trained] if count.is_zero else []
        error: Exception | None = None
        with self._calls.driven(bool(call.retain_graph)) as runs:
            try:
                if isinstance(call.loss, Later):
                    seed = gradients[0]
                    self._later.run(call.loss, seed, engine, call.retain_graph, trained)
                else:
                    engine(tensors, gradients, call.retain_graph, False)
            except Exception as raised:
                if any(run.is_broken for run in runs):
                    self._job.stop_for(raised)
                    raise
                error = raised
        for one, gradient in zip(trained, saved, strict=False):
            one.grad = gradient
        found = [error, *(run.error for run in runs)]
        return next((one for one in found if one is not None), None)

    # Exchange between ranks ----------------------------------------------------------------------

    def _exchange_header(
        self,
        call: BackwardCall,
        count: Count,
        error: Exception | None,
        parts: list[Part],
        weighed: list[Number],
    ) -> strategy_header.Header:
        """Compare the ranks' positions. If a rank has an error, raise it on all ranks."""
        place = torch.zeros((), dtype=torch.float64, device=self._session.device)
        header = strategy_header.make_header(place, 0)
        progress = self._job.backwards * 7 + self._steps
        share = self._session.share
        loss = None if isinstance(call.loss, Later) else call.loss
        constants = self._constants.number(loss, share.weight, progress)
        slots = numbers(count, progress, share.position, float(error is not None), constants)
        if parts:
            strategy_header.add_parts(slots, kind_of(parts), weighed)
        header.begin(slots)
        reported = header.complete(_known(call) if error is None else None, place, [])
        dist.all_reduce(reported)
        reported /= self._session.world_size
        self._compare(header.mean(), [float(slot or 0.0) for slot in header.slots], error)
        return header

    def _compare(self, mean: list[float], sent: list[float], error: Exception | None) -> None:
        if mean[FAILED]:
            self._barrier.raise_common(error, everywhere=True)
        if not agrees(mean, sent):
            raise RanksDiverged(ORDER.format(self._job.backwards + 1, divergence.SEED))
        if not constants_agree(mean, sent):
            self._constants.judge(int(sent[PROGRESS]))
        if self._parts == 1:
            first_steps.SameLoss("pipeline").look(mean, sent)

    def _parts_of_loss(self, call: BackwardCall, count: Count) -> tuple[list[Part], list[Number]]:
        """Return the loop's intermediate values of the loss, which differ between pipelines, and
        what this pipeline adds to their means.
        """
        loss = loss_counts.scalar_loss(call)
        if loss is None or isinstance(loss, Later) or self._parts == 1 or not call.sync:
            return [], []
        parts = writable_parts(self._session, call, loss, count)
        return parts, weigh_parts(self._session, parts, loss, count)

    def _give_loss(self, header: strategy_header.Header, call: BackwardCall, scale: float) -> None:
        """Average the loss over pipelines. The ranks of one pipeline have the same loss."""
        loss = loss_counts.scalar_loss(call)
        if (
            self._parts > 1
            and call.sync
            and loss is not None
            and not (call.retain_graph or loss.is_leaf or is_view(loss))
        ):
            header.give_loss(loss, scale)

    def _end(self, call: BackwardCall) -> None:
        self._replicas.note(call.sync)
        if self._parts > 1:
            self._replicas.copy_buffers()
        self._job.count_backward()
        if self._parts > 1 and not self._session.random.is_split:
            self._session.random.split(self._session.world.data.part)
        if self._job.backwards == DISCOVERY_BACKWARDS:
            self._session.end_discovery()

    @hookimpl
    def scheduler_metric(self, metric: Tensor | float) -> Tensor | float:
        return self._session.reduce(metric) if self._parts > 1 else metric

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"notes": [self._counts.note]} if self._counts.note else {}


def refuse(call: BackwardCall) -> None:
    """Raise Unsupported for a backward that the stages can't run."""
    argument = "create_graph=True" if call.create_graph else "inputs="
    if call.create_graph or call.inputs is not None:
        raise Unsupported(
            f"backward({argument}) under strategy='pipeline': the layers of other ranks know"
            " only of backward(); use strategy='ddp' or 'dp'"
        )


def _known(call: BackwardCall) -> Tensor | None:
    """Return the loss, or None if it is not a scalar or, being lazy, has not been computed."""
    loss = loss_counts.scalar_loss(call)
    return loss.value if isinstance(loss, Later) else loss


class PipelineReplicas:
    """Averages gradients, and copies the buffers of the first pipeline to the others."""

    def __init__(self, session: Context, models: CutModels, team: PipelineRanks) -> None:
        self._session, self._models, self._team = session, models, team
        self._first = team.place  # the global rank of this place in the first pipeline
        self.remain = False

    def note(self, sync: bool) -> None:
        """Record whether the backward that has ended left gradients that are not averaged."""
        self.remain = not sync and self._team.parts > 1

    @torch.no_grad()
    def average(self, trained: list[Tensor]) -> None:
        """Average the gradients over pipelines. All ranks must call this.

        A gradient that no pipeline has remains None. One that only some have counts as zeros in the
        others.
        """
        group = self._team.replicas
        if group is None or not trained:
            return
        present = torch.tensor([float(one.grad is not None) for one in trained])
        present = present.to(self._session.device)
        dist.all_reduce(present, group=group)
        made = [one for one, count in zip(trained, present.tolist(), strict=True) if count]
        for one in made:
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad.to_dense()
        averaging.mean_over([one.grad for one in made if one.grad is not None], group)

    def copy_buffers(self) -> None:
        """Copy the buffers of the first pipeline to the others. All ranks must call this."""
        group = self._team.replicas
        for buffer in self._buffers() if group is not None else ():
            dist.broadcast(buffer, self._first, group=group)

    def _buffers(self) -> list[Tensor]:
        found = [
            buffer
            for module in self._modules()
            for buffer in buffers(module).values()
            if buffer is not None and buffer.numel()
        ]
        return list({id(one): one for one in found}.values())

    def _modules(self) -> list[Module]:
        models = [model for cut in self._models if (model := cut.model()) is not None]
        modules = [module for model in models for module in model.modules()]
        return [
            module
            for module in modules
            if (mark := mark_of(module)) is None or mark.place == self._team.place
        ]

    @hookimpl(tryfirst=True)
    def gradients_ready(self, optimizer: Optimizer) -> None:
        """Average, before a step, the gradients of backwards under ``s.no_sync()``."""
        if self.remain and self._session.captures(optimizer):
            self.average(self._models.trained())
            self.remain = False
