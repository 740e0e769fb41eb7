"""The strategy ``pipeline``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch.amp.grad_scaler import GradScaler
from torchbus.plugin import Context, Unsupported, UsageError, World, hookimpl

from torchbus_pipeline.backward import PipelineBackward, PipelineReplicas
from torchbus_pipeline.calls import LayerCalls
from torchbus_pipeline.divergence import CheckedBarrier, make_team
from torchbus_pipeline.later_backward import LaterBackward, Orders
from torchbus_pipeline.models import CutModels
from torchbus_pipeline.options import PipelineOptions, read_balance
from torchbus_pipeline.states import End, WholeModules, WholeNorm, WholeOptimizers
from torchbus_strategy import groups
from torchbus_strategy.backward import loss_counts
from torchbus_strategy.strategy import Strategy


class Pipeline(Strategy):
    """Pipeline parallel: consecutive layers on consecutive ranks, batches in micro-batches.

    All ranks of a pipeline get the same batch. Each has the values, gradients and optimizer states
    of its layers only. Every rank computes the loss, and the modules outside the list of layers.

    Args:
        balance: the number of layers of each stage, such as [2, 3]. With "auto" or "parameters",
            the largest stage is as small as possible. With "time", the slowest stage is as fast as
            possible, as measured by rank 0 at the model's first call.
        microbatches: the number of parts into which the rows of a batch are cut.
        schedule: "gpipe" for all forwards and then all backwards, "1f1b" for one forward and one
            backward in turn, which stores less, or "interleaved" for 1f1b with two or more stages
            on each rank.
        blocks: the path of the nn.Sequential or nn.ModuleList whose layers are divided. "auto"
            stands for the model itself, or its longest list of repeated blocks.
        stages: the number of ranks of a pipeline. If the session has more ranks, there are several
            pipelines, each with its share of the data. None makes one pipeline of all ranks.
        loss_reduction: "mean" if the loss is a mean over samples, "sum" if it is a sum.
        loss_weight: what weights a pipeline's gradient in the mean: "auto", "samples" or "tokens",
            as for ddp.
        backend: a backend of torch.distributed, or None for the usual one of the device.

    Raises:
        UsageError: if an option has a wrong type or value, or the number of ranks is not a multiple
            of ``stages``.

    Source: Huang et al., GPipe, NeurIPS 2019; Narayanan et al., PipeDream, SOSP 2019;
    torch.distributed.pipelining.
    """

    name = "pipeline"
    gathers = True
    divides_data = False
    gradients_in_parts = True
    companions: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        balance: str | Sequence[int] = "auto",
        microbatches: int = 4,
        schedule: Literal["gpipe", "1f1b", "interleaved"] = "gpipe",
        blocks: str = "auto",
        stages: int | None = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
        loss_weight: Literal["auto", "samples", "tokens"] = "auto",
        backend: str | None = None,
    ) -> None:
        super().__init__(backend=backend, loss_reduction=loss_reduction, loss_weight=loss_weight)
        self.pipeline = PipelineOptions(
            read_balance(balance), microbatches, schedule, blocks, stages
        )
        if stages is not None:
            self.companions = ("sampler",)

    @hookimpl
    def launch(self, session: Context) -> World:
        size = self.pipeline.ranks_of_pipeline(session.launcher.ranks_asked_for)
        world = session.start_ranks(self.form)
        size = self.pipeline.ranks_of_pipeline(world.world_size)
        parts = world.world_size // size
        self.divides_data = parts > 1
        if session.job is not None:
            session.job.begin_alike = False  # ranks exchange different numbers of messages
        return groups.arrange_ranks(session, dp=parts, pp=size)

    def start(self, session: Context) -> None:
        """Register the parts of the strategy. From here on, models are cut into stages."""
        refuse_options(session)
        session.replace(GradScaler, "scale", refuse_scaling)
        team = make_team(session, self.pipeline.ranks_of_pipeline(session.world_size))
        barrier = CheckedBarrier(session, team.pipelines)
        models = CutModels(session, self.pipeline, team, barrier)
        calls = LayerCalls(session, team, barrier, self.pipeline)
        later = LaterBackward(self.pipeline.schedule, Orders(team), session.is_main)
        modules = WholeModules(session, team, barrier)
        optimizers = WholeOptimizers(session, barrier)
        models.on_cut += [modules.add, calls.add, optimizers.keep_local]
        replicas = PipelineReplicas(session, models, team)
        counts = loss_counts.LossCounts(
            session, self.name, self.loss_reduction, self.loss_weight, 1.0
        )
        parts = {
            "models": models,
            "optimizers": optimizers,
            "norm": WholeNorm(session, models, team),
            "replicas": replicas,
            "backward": PipelineBackward(session, models, calls, barrier, replicas, counts, later),
            "end": End(session, barrier, models, modules, optimizers),
        }
        for name, part in parts.items():
            session.bus.register(part, f"{self.name}.{name}")

    def how(self) -> str:
        """Return the text of ``explain()`` after the strategy's name and backend."""
        options = self.pipeline
        return (
            "consecutive layers are on consecutive ranks; a batch passes them in"
            f" {options.microbatches} micro-batches, by the schedule {options.schedule}; all ranks"
            " of a pipeline compute the loss"
        )


class RpcSequential(Pipeline):
    """The pipeline under the name and with the arguments of fairscale's strategy."""

    name = "rpc_sequential"


def refuse_scaling(original: Callable[..., object]) -> Callable[..., object]:
    """Return a ``GradScaler.scale`` that raises Unsupported unless the scaler is disabled."""

    def scale(self: GradScaler, outputs: object) -> object:
        if self.is_enabled():
            raise Unsupported(
                "GradScaler (precision='16') under strategy='pipeline': ranks have the gradients of"
                " other layers, and would find infinities in other steps; use bfloat16, which needs"
                " no scaler, or strategy='ddp'"
            )
        return original(self, outputs)

    return scale


def refuse_options(session: Context) -> None:
    """Raise UsageError for options of other plugins that the pipeline does not support."""
    if session.options.get("sharded_save"):
        raise UsageError(
            "sharded_save=True with strategy='pipeline': leave it out; a checkpoint has whole"
            " tensors, which any number of ranks can load"
        )
