"""Rank 0's values for parameters and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torchbus.plugin import RanksDiverged, Settings, UsageError, all_gather_object, hyperparameters

CHUNK_BYTES = 64 * 2**20


def copy_from_rank0(tensors: Sequence[Tensor], what: str, made_with: Settings | None = None) -> None:
    """Give the tensors rank 0's values, on all ranks, without autograd noticing. All ranks call it alike.

    Raises RanksDiverged where the ranks have tensors of different shapes, or other hyperparameters (``made_with``).
    """
    made_with = made_with or {}
    shapes = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]
    told = all_gather_object((what, [hyperparameters.digest(made_with), *shapes]), dist.get_world_size())
    _refuse_unlike(told)
    if len({theirs[0] for _, theirs in told}) > 1:
        hyperparameters.compare(all_gather_object(made_with, dist.get_world_size()))
    for chunk in _chunks([tensor for tensor in tensors if tensor.numel()]):
        broadcast(chunk)


def _refuse_unlike(told: list[tuple[str, list[Any]]]) -> None:
    what, first = told[0]
    for rank, (their_what, theirs) in enumerate(told):
        if type(theirs) is not type(first) or theirs[1:] != first[1:]:
            raise RanksDiverged(
                f"rank {rank} comes with {their_what} ({len(theirs) - 1} tensors) where rank 0 comes with {what} ({len(first) - 1} tensors): "
                f"all ranks must build and first use their models in the same order.{hyperparameters.searches()}"
            )


def refuse_empty(tensors: Sequence[Tensor], models: Sequence[Module]) -> None:
    """Raises UsageError: there is nothing that rank 0 could send."""
    lazy = [tensor for tensor in tensors if is_lazy(tensor)]
    if lazy:
        owner = _owner(lazy, models)
        raise UsageError(f"{owner} has lazy parameters, which get their values in its first call: call it before its optimizer is made")
    meta = [tensor for tensor in tensors if tensor.is_meta]
    if meta:
        raise UsageError(
            f"{_owner(meta, models)} is on the meta device, so its parameters have no values: model.to_empty(device=...) and its "
            "initialisation come before its optimizer; or use strategy='fsdp', which does both"
        )


def _owner(tensors: Sequence[Tensor], models: Sequence[Module]) -> str:
    wanted = set(map(id, tensors))
    return next((type(model).__name__ for model in models if any(id(p) in wanted for p in model.parameters())), "a tensor")


def broadcast(tensors: Sequence[Tensor]) -> None:
    """One broadcast for tensors of any dtype on one device. ``.data`` keeps saved graphs valid."""
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault(tensor.dtype, []).append(tensor.data)
    flat = [_flatten_dense_tensors(group).view(torch.uint8) for group in kinds.values()]
    packed = torch.cat(flat)
    dist.broadcast(packed, src=0)
    if dist.get_rank() != 0:
        for (dtype, group), part in zip(kinds.items(), packed.split([len(one) for one in flat]), strict=True):
            torch._foreach_copy_(group, list(_unflatten_dense_tensors(part.clone().view(dtype), group)))


def _chunks(tensors: list[Tensor]) -> list[list[Tensor]]:
    chunks: dict[tuple[torch.device, int], list[Tensor]] = {}
    sizes: dict[torch.device, int] = {}
    for tensor in tensors:
        sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.nbytes
        chunks.setdefault((tensor.device, sizes[tensor.device] // CHUNK_BYTES), []).append(tensor)
    return list(chunks.values())


class Buffers:
    """The buffers of the trained models: looked up at each use, for many a model replaces them."""

    def __init__(self, models: Sequence[Module]) -> None:
        modules = {id(module): module for model in models for module in model.modules()}
        self._holders = [module for module in modules.values() if module._buffers]

    def copy_from_rank0(self) -> None:
        """One broadcast for all of them. All ranks call it."""
        present = [buffer for module in self._holders for buffer in module._buffers.values() if buffer is not None and buffer.numel()]
        unique = list({id(buffer): buffer for buffer in present}.values())
        for device in {buffer.device for buffer in unique}:
            broadcast([buffer for buffer in unique if buffer.device == device])
