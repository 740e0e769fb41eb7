"""Rank 0's values for parameters and buffers."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torchbus.plugin import RanksDiverged, UsageError

from torchbus_strategy.checks import hyperparameters
from torchbus_strategy.checks.constants import MODULUS
from torchbus_strategy.checks.hyperparameters import Settings
from torchbus_strategy.collectives import all_gather_object
from torchbus_strategy.compat import buffers, flattened, foreach_copy_, is_divided, unflattened

CHUNK_BYTES = 64 * 2**20
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def copy_from_rank0(
    tensors: Sequence[Tensor], what: str, made_with: Settings | None = None
) -> None:
    """Give the tensors rank 0's values, on all ranks, without autograd noticing.

    All ranks call it. A DTensor is left as it is: the engine that has divided it has given it its
    values. ``what`` names the tensors in messages. Raises RanksDiverged if the ranks
    have tensors of different shapes, or other hyperparameters (``made_with``).
    """
    made_with = made_with or {}
    shapes = repr([(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]).encode()
    mine = [hyperparameters.digest(made_with), len(tensors), sha256(shapes).hexdigest()]
    reported = gather_summaries(what, mine)
    _refuse_unlike(reported)
    if len({theirs[0] for _, theirs in reported}) > 1:
        hyperparameters.compare(all_gather_object(made_with, dist.get_world_size()))
    whole = [tensor for tensor in tensors if tensor.numel() and not is_divided(tensor)]
    for chunk in _chunks(whole):
        broadcast(chunk)


def gather_summaries(what: str, mine: list[Any]) -> list[tuple[str, list[Any]]]:
    """Return ``what`` and ``mine`` of each rank.

    All ranks call it. The message size does not depend on the model. Raises RanksDiverged if a rank
    is elsewhere and sends another message.
    """
    reported = all_gather_object((what, mine), dist.get_world_size())
    if any(type(theirs) is not list for _, theirs in reported):
        _refuse_unlike(reported)
    return reported


def _refuse_unlike(reported: list[tuple[str, Any]]) -> None:
    what, first = reported[0]
    for rank, (their_what, theirs) in enumerate(reported):
        if type(theirs) is not type(first) or theirs[1:] != first[1:]:
            raise RanksDiverged(
                f"rank {rank} comes with {their_what} ({_number(theirs)} tensors), but rank 0 comes"
                f" with {what} ({_number(first)} tensors): all ranks must build and first use their"
                f" models in the same order.{hyperparameters.searches()}"
            )


def _number(reported: object) -> int:
    """Return how many tensors a rank has; 0 if it is elsewhere and sends another message."""
    return reported[1] if isinstance(reported, list) and len(reported) > 1 else 0


def refuse_empty(tensors: Sequence[Tensor], models: Sequence[Module]) -> None:
    """Raise UsageError for tensors without values, which rank 0 could not send."""
    lazy = [tensor for tensor in tensors if is_lazy(tensor)]
    if lazy:
        owner = _owner(lazy, models)
        raise UsageError(
            f"{owner} has lazy parameters, which get their values in its first call: call it before"
            " you make its optimizer"
        )
    meta = [tensor for tensor in tensors if tensor.is_meta]
    if meta:
        raise UsageError(
            f"{_owner(meta, models)} is on the meta device, so its parameters have no values: call"
            " model.to_empty(device=...) and initialise it before you make its optimizer, or use"
            " strategy='fsdp', which does both"
        )


def _owner(tensors: Sequence[Tensor], models: Sequence[Module]) -> str:
    wanted = set(map(id, tensors))
    return next(
        (
            type(model).__name__
            for model in models
            if any(id(p) in wanted for p in model.parameters())
        ),
        "a tensor",
    )


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Send rank 0's tensors, of any dtypes and on one device, in one broadcast.

    Writing into ``.data`` keeps graphs valid that have saved these tensors.
    """
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault(tensor.dtype, []).append(tensor.data)
    flat = [flattened(group).view(torch.uint8) for group in kinds.values()]
    packed = torch.cat(flat)
    dist.broadcast(packed, src=0)
    if dist.get_rank() != 0:
        for (dtype, group), part in zip(
            kinds.items(), packed.split([len(one) for one in flat]), strict=True
        ):
            foreach_copy_(group, list(unflattened(part.clone().view(dtype), group)))


def _chunks(tensors: list[Tensor]) -> list[list[Tensor]]:
    chunks: dict[tuple[torch.device, int], list[Tensor]] = {}
    sizes: dict[torch.device, int] = {}
    for tensor in tensors:
        sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.nbytes
        chunks.setdefault((tensor.device, sizes[tensor.device] // CHUNK_BYTES), []).append(tensor)
    return list(chunks.values())


class BufferOfModule(NamedTuple):
    """A buffer, and the module that holds it."""

    holder: Module
    name: str
    tensor: Tensor

    @property
    def label(self) -> str:
        return f"{type(self.holder).__name__}.{self.name}"

    @property
    def is_statistic(self) -> bool:
        """Whether the buffer is a normalization's statistic, which may differ between ranks."""
        return self.name in STATISTICS


def entries_of(models: Iterable[Module]) -> list[BufferOfModule]:
    """Return the buffers of models, those of each module once."""
    modules = {id(module): module for model in models for module in model.modules()}
    return [
        BufferOfModule(module, name, buffer)
        for module in modules.values()
        for name, buffer in buffers(module).items()
        if buffer is not None
    ]


class Buffers:
    """The buffers of models, looked up at each use because models may replace them.

    ``others`` are modules without parameters. If the ranks have called different modules of this
    kind, their buffers stay as they are. ``shapes`` is a checksum, below ``MODULUS``, of the
    buffers' shapes, or 0 if the ranks have agreed on these shapes.
    """

    def __init__(self, models: Sequence[Module], others: Sequence[Module] = ()) -> None:
        modules = {id(module): module for model in models for module in model.modules()}
        self._holders = [module for module in modules.values() if buffers(module)]
        self._others = [one for other in others for one in other.modules() if buffers(one)]
        self._agreed: list[tuple[int, ...]] = []
        self.are_none = not self._holders and not self._others

    @property
    def shapes(self) -> int:
        if self.are_none:
            return 0
        now = [tuple(buffer.shape) for buffer in self._present()]
        return 0 if now == self._agreed else zlib.crc32(repr(now).encode()) % (MODULUS - 1) + 1

    def entries(self) -> list[BufferOfModule]:
        """Return each buffer once."""
        unique = {id(entry.tensor): entry for entry in self._entries()}
        return list(unique.values())

    def copy_from_rank0(self, alike: bool = True) -> None:
        """Give all ranks rank 0's buffers, in one broadcast per device. All ranks call it.

        ``alike`` says that they have the same shapes on all ranks. Otherwise buffers whose shapes
        differ stay as they are: a module stores part of its batch, and the shares are uneven.
        """
        present = self._present()
        if alike:
            self._agreed = [tuple(buffer.shape) for buffer in present]
        unique = list({id(buffer): buffer for buffer in present}.values())
        if not alike:
            unique = self._of_equal_shapes(unique)
        unique = [buffer for buffer in unique if buffer.numel()]
        for device in {buffer.device for buffer in unique}:
            broadcast([buffer for buffer in unique if buffer.device == device])

    def _of_equal_shapes(self, unique: list[Tensor]) -> list[Tensor]:
        """Return the buffers that have the same shape on all ranks."""
        reported = all_gather_object([tuple(one.shape) for one in unique], dist.get_world_size())
        if len({len(theirs) for theirs in reported}) > 1:
            self._others, self.are_none = [], not self._holders
            return []
        return [
            buffer
            for buffer, shapes in zip(unique, zip(*reported, strict=True), strict=True)
            if len(set(shapes)) == 1
        ]

    def _present(self) -> list[Tensor]:
        return [entry.tensor for entry in self._entries()]

    def _entries(self) -> list[BufferOfModule]:
        return [
            BufferOfModule(module, name, buffer)
            for module in (*self._holders, *self._others)
            for name, buffer in buffers(module).items()
            if buffer is not None
        ]
