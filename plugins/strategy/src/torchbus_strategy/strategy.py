"""The base class of strategies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torchbus.plugin import Context, Plugin, PluginError, World, hookimpl, warn

from torchbus_strategy.backward.gradients import GradientSync
from torchbus_strategy.backward.reduction import AllAfterBackward, Reductions
from torchbus_strategy.checks.first_steps import TriedAverage
from torchbus_strategy.checks.replicas import watch_replicas
from torchbus_strategy.options import Division, SyncOptions
from torchbus_strategy.parameters.sync_buffers import How
from torchbus_strategy.parameters.trained import TrainedParameters
from torchbus_strategy.process_group import check_backend, join_ranks, refuse_gloo

NO_SAMPLER = (
    "loaders are not divided, because torchbus-sampler is not installed: pip install"
    " torchbus-sampler"
)


class Strategy(Plugin):
    """Each rank trains on its share of the data, and gradients are averaged in ``backward``.

    A subclass defines how gradients are averaged: it defines ``average``, or ``reductions`` if its
    engine needs more, or ``start`` if it does everything itself. The base class starts or joins the
    ranks, and opens the process group. It gives all ranks rank 0's random state, parameters and
    buffers. It weighs each rank's loss by its samples or tokens. In each backward it compares the
    ranks' progress, order of data, hyperparameters and parameters. Afterwards the loss holds the
    mean over ranks, and each rank draws different random numbers.

    Args:
        backend: the torch.distributed backend. None means TORCHBUS_BACKEND if that is set, or else
            "nccl" for GPUs and "gloo" for CPUs.
        loss_reduction: whether losses are a "mean" or a "sum" over samples. "auto" reads this from
            the loss's graph, and assumes a mean if the graph does not show it.
        loss_weight: what a rank's gradient counts in the mean. "auto" is what the loss is a mean
            of, as its graph shows, or else samples. "samples" is always samples. "tokens" is like
            "auto", but refuses a loss whose graph shows no count.
        sync_loss: whether the loss tensor holds the mean (sum) over all ranks after ``backward``.
        sync_batchnorm: whether BatchNorm computes its statistics over all ranks (GPUs only).
        sync_buffers: what all ranks have in a buffer after ``backward``. "rank0" is the value of
            rank 0. "mean" is the mean over ranks, or rank 0's value of integers. "sum" is the
            earlier value with the changes of all ranks. A dict has one of these by buffer name.

    Raises:
        PluginError: the subclass does not define how gradients are averaged.
        UsageError: an option has another type or value.
    """

    name: ClassVar[str] = "strategy"
    form: ClassVar[str | None] = None
    """A form of ``launch``, such as "spawn", that replaces the one that the session names."""

    engine: ClassVar[str] = "gradients are averaged in backward"
    """How gradients are averaged, for ``explain()``."""

    gathers: ClassVar[bool] = False
    """Whether ranks gather or send tensors of their devices, which gloo can do on the CPU only."""

    owns: tuple[str, ...] = ("strategy",)
    divides_data: bool = True
    """Whether each rank trains on a separate share of the data."""

    divides_states: bool = False
    """Whether ``state_dict()`` returns this rank's parts as DTensors inside of ``in_parts()``.

    The hooks of ``state_dict()`` read ``session.gathers_states``.
    """

    gradients_in_parts: bool = False
    """Whether a rank has the gradients of only some parameters, and None for the others."""

    gradients_elsewhere: bool = False
    """Whether the engine stores the gradients itself, and ``parameter.grad`` is None."""

    steps_in: torch.dtype = torch.float64
    """The least exact dtype in which the engine computes its steps."""

    unfreezes: bool = True
    """Whether parameters that are frozen at the first forward may be unfrozen later."""

    takes_bytes: bool = True
    """Whether a frozen weight may be bytes whose meaning only its layer knows."""

    companions: tuple[str, ...] = ("sampler",)

    def __init__(
        self,
        *,
        backend: str | None = None,
        loss_reduction: Literal["auto", "mean", "sum"] = "auto",
        loss_weight: Literal["auto", "samples", "tokens"] = "auto",
        sync_loss: bool = True,
        sync_batchnorm: bool = False,
        sync_buffers: How | Mapping[str, How] = "rank0",
    ) -> None:
        self._refuse_without_engine()
        self.backend = check_backend(backend)
        self.options = SyncOptions(
            self.name, loss_reduction, loss_weight, sync_loss, sync_batchnorm, sync_buffers
        )
        # accumulation windows read these two
        self.loss_reduction, self.loss_weight = loss_reduction, loss_weight

    def average(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its mean over ranks, in place.

        All ranks call it once per synchronised backward, with tensors of the same shapes, dtypes
        and devices, in the same order. The first is a short vector of the ranks' metadata: it must
        be averaged exactly, in its own dtype.
        """
        raise NotImplementedError

    def reductions(self, session: Context, trained: TrainedParameters) -> Reductions:
        """Return what averages the gradients of the ``trained`` parameters over ranks.

        By default ``average`` gets them once the graph has run. All ranks call it.
        """
        tried = TriedAverage(self.average, type(self).__name__, session.world.data)
        return AllAfterBackward(trained, tried)

    def division(self, session: Context) -> Division:
        """Return how the ranks divide a batch. By default each rank has a separate part."""
        return Division(watch_replicas(session), stream=session.world.data.part)

    def start_alone(self, session: Context) -> None:
        """Start on a single rank, where ``start`` is not called. Does nothing by default."""

    def start(self, session: Context) -> None:
        """Begin to synchronise. The process group is open. All ranks call it."""
        gradients = GradientSync(
            session,
            self.options,
            self.division(session),
            lambda trained: self.reductions(session, trained),
        )
        session.bus.register(gradients, f"{self.name}.gradients")

    def how(self) -> str:
        """Return what ``explain()`` says after the strategy's name and backend."""
        return f"{self.engine}; {self.of_loss()}"

    def of_loss(self) -> str:
        """Describe what the loss holds after ``backward``, for ``explain()``."""
        if not self.options.sync_loss:
            return "losses stay local"
        kind = "mean" if self.loss_reduction == "auto" else self.loss_reduction
        return f"afterwards the loss holds the {kind} over ranks"

    @hookimpl
    def launch(self, session: Context) -> World:
        return session.start_ranks(self.form)

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.world_size == 1:
            return self.start_alone(session)
        self.options.check_device(session.device)
        if self.gathers:
            refuse_gloo(self.name, self.backend, session.device.type)
        self.backend = join_ranks(session, self.backend)
        self.start(session)
        if self.divides_data:
            warn_without_sampler(session)

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]]:
        if session.world_size == 1:
            return {"strategy": [f"{self.name} on one rank: nothing to synchronise"]}
        without = self.divides_data and not has_sampler(session)
        return {
            "notes": [NO_SAMPLER] if without else [],
            "strategy": [f"{self.name} over {self.backend}: {self.how()}"],
        }

    @classmethod
    def _refuse_without_engine(cls) -> None:
        if all(
            getattr(cls, name) is getattr(Strategy, name)
            for name in ("average", "reductions", "start")
        ):
            raise PluginError(
                f"{cls.__name__} is a Strategy that does not define how gradients are averaged:"
                " define average(self, tensors), which replaces each tensor by its mean over ranks"
            )


def has_sampler(session: Context) -> bool:
    """Whether a plugin divides the loaders."""
    return any(
        "order of the data" in getattr(plugin, "owns", ()) for _, plugin in session.bus.plugins()
    )


def warn_without_sampler(session: Context) -> None:
    """Warn, on rank 0, if no plugin divides the loaders."""
    if session.is_main and not has_sampler(session):
        warn(NO_SAMPLER)
