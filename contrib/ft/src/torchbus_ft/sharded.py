"""Replicas that fsdp shards over their ranks: rank i of each replica has the same shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, Unsupported, hookimpl

from torchbus_ft.averaging import SharedBuffers, over_replicas
from torchbus_ft.live import Live
from torchbus_ft.replicas import ReplicaLink
from torchbus_strategy import compat
from torchbus_strategy.parameters import averaging

LOOSE = (
    "replica_strategy='fsdp': {} holds tensors that no called module owns, which only the ranks of"
    " one replica would average. Make them parameters of a module, or leave replica_strategy out"
)


class TrainedShards:
    """This rank's shards of all parameters, the frozen ones included."""

    def __init__(self, live: Live) -> None:
        self._live = live

    @property
    def parameters(self) -> list[Tensor]:
        groups = [group for one in self._live.optimizers for group in one.param_groups]
        held = [one for group in groups for one in group["params"]]
        owned = [one for model in self.models(held) for one in model.parameters()]
        return list({id(one): one for one in [*held, *owned]}.values())

    def models(self, parameters: Sequence[Tensor]) -> list[Module]:
        """Return the models that own the parameters."""
        return objects.models_of(parameters)


class AcrossShards:
    """Averages each shard of a gradient with the same shard of the other replicas.

    fsdp has already averaged over the ranks of this replica. Calls ``averaged`` afterwards.
    """

    hears_trials = False

    def __init__(
        self, session: Context, replicas: ReplicaLink, live: Live, averaged: Callable[[], None]
    ) -> None:
        self._session = session
        self._replicas = replicas
        self._live = live
        self._buffers = SharedBuffers(live.buffers, replicas)
        self._averaged = averaged

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is not None and not self._session.captures(optimizer):
            return
        self._live.forget()
        if any(not isinstance(one, DTensor) for one in parameters):
            what = "s.adopt(...)" if optimizer is None else type(optimizer).__name__
            raise Unsupported(LOOSE.format(what))

    @hookimpl
    def average_beyond(self, parameters: list[Tensor], numbers: list[float]) -> list[float]:
        with torch.no_grad():
            return self._average(parameters, numbers)

    def _average(self, parameters: list[Tensor], numbers: list[float]) -> list[float]:
        trained = [one for one in parameters if one.requires_grad]
        reached = [float(one.grad is not None) for one in trained]
        reported = torch.tensor([*numbers, *reached], dtype=torch.float64)
        gradients = [averaging.dense_gradient(one) for one in trained]
        over_replicas(self._replicas, [reported, *map(compat.local_part, gradients)])
        shares = reported[len(numbers) :].tolist()
        for one, gradient, share in zip(trained, gradients, shares, strict=True):
            one.grad = gradient if share else None
        self._buffers.copy_from_rank0()
        self._averaged()
        means: list[float] = reported[: len(numbers)].tolist()
        return means


def share(
    session: Context, replicas: ReplicaLink, live: Live, averaged: Callable[[], None]
) -> None:
    """Average over replicas the gradients that fsdp averages in each of them."""
    live.trained = models = TrainedShards(live)
    live.pack, live.unpack = packed, lambda state: unpacked(state, mesh_of(models.parameters))
    session.bus.register(AcrossShards(session, replicas, live, averaged), "ft.shards")


# The state ---------------------------------------------------------------------------------------


class Shard(NamedTuple):
    """A rank's local part of a DTensor, without the mesh, which differs between replicas.

    ``shape`` and ``stride`` are those of the whole tensor.
    """

    part: Tensor
    placements: tuple[Any, ...]
    shape: torch.Size
    stride: tuple[int, ...]


def packed(state: Any) -> Any:
    """Return the state with each DTensor replaced by a ``Shard``."""
    if isinstance(state, DTensor):
        return Shard(
            compat.local_part(state.detach()), tuple(state.placements), state.shape, state.stride()
        )
    return _changed(state, packed)


def unpacked(state: Any, mesh: DeviceMesh) -> Any:
    """Return the state with each ``Shard`` replaced by a DTensor over this replica's mesh."""
    if isinstance(state, Shard):
        return DTensor.from_local(
            state.part,
            mesh,
            state.placements,
            run_check=False,
            shape=state.shape,
            stride=state.stride,
        )
    return _changed(state, lambda one: unpacked(one, mesh))


def mesh_of(parameters: Sequence[Tensor]) -> DeviceMesh:
    """Return the mesh over which fsdp has sharded the parameters."""
    return next(one.device_mesh for one in parameters if isinstance(one, DTensor))


def _changed(state: Any, change: Callable[[Any], Any]) -> Any:
    if type(state) is dict:
        return {key: change(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(change, state))
    return state
