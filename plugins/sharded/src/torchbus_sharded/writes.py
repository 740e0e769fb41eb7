"""Keeps writes of a forward to parameters: a clamp, a norm, a moving average of another model.

Torch's engine loses such writes. Gathered values are released after the forward, and values that
were gathered ahead are older than a write to this rank's part.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import Module
from torchbus.compat.torch_names import version
from torchbus.plugin import Context

from torchbus_sharded._compat import (
    DATA,
    Group,
    Pair,
    call_before_reshard,
    gather_after_writes,
    gathered_now,
    groups_in,
    is_in_forward,
    let_go_of_early,
    pairs_in,
)
from torchbus_sharded.agreement import Agreement
from torchbus_sharded.dtensor import check_alike, set_data
from torchbus_strategy import compat, sharding
from torchbus_strategy.checks.constants import Digest, byte_sum


class ShardWrites:
    """Detects writes by the tensor's version counter or its ``data``, and copies them to shards.

    Writes of compiled code, and of ``torch._foreach_*`` to parts, may change neither. So the
    numbers are compared too, in the first steps.
    """

    def __init__(self, session: Context, agreement: Agreement) -> None:
        self._place = agreement.make_room(1)
        self._on_close = session.on_close
        self._models: weakref.WeakSet[Module] = weakref.WeakSet()
        self._handed_out: set[int] = set()
        self._hidden: set[int] = set()
        self._digest = Digest()
        self._looks_closely, self._has_unseen = True, False
        for kind, write in ((nn.Parameter, self._set_data), (DTensor, set_data)):
            undo = self._replace_data(kind, write)
            session.on_close.callback(session.seams.note(f"{kind.__name__}.data", undo))

    def add(self, model: Module) -> None:
        """Add a sharded model."""
        self._models.add(model)
        for group in groups_in(model):
            self._on_close.callback(call_before_reshard(group, self._keep))

    def begin(self, model: Module) -> None:
        """Begin a forward: copy earlier writes, and note the present versions of the shards."""
        self._keep_of(model)
        others = [one for one in self._models if one is not model]
        self._handed_out.intersection_update(
            id(held) for one in others for held in _tensors_of(one)
        )
        self._note_parts(model)

    def refresh(self, unit: Module) -> None:
        """Before a unit is gathered, drop values that are older than its shards.

        All ranks call it, and have written the same values.
        """
        pairs = [pair for pair in pairs_in(unit) if hasattr(pair, "torchbus_part_version")]
        if self._looks_closely and any(
            pair.torchbus_part_sum not in (None, _sum(pair)) for pair in pairs
        ):
            self._has_unseen = True
        seen = any(
            version(pair.sharded_param) != pair.torchbus_part_version
            or id(pair.sharded_param) in self._handed_out
            for pair in pairs
        )
        if seen:
            self._handed_out -= {id(pair.sharded_param) for pair in pairs}
            self._note_parts(unit)
            let_go_of_early(unit)
        if seen or self._has_unseen:
            for group in groups_in(unit):
                gather_after_writes(group)

    def keep_all(self) -> None:
        """Copy writes to gathered parameters to this rank's shards."""
        for model in self._models:
            self._keep_of(model)

    def _keep_of(self, model: Module) -> None:
        for group in groups_in(model):
            self._keep(group)

    def _keep(self, group: Group) -> None:
        closely = self._looks_closely and is_in_forward(group)
        written = [self._keep_one(pair, whole, closely) for pair, whole in gathered_now(group)]
        if any(written):
            gather_after_writes(group)

    def _keep_one(self, pair: Pair, whole: Tensor, closely: bool) -> bool:
        """Copy the writes to one parameter. Returns whether there were any."""
        if version(whole) != getattr(pair, "torchbus_whole_version", 0):
            pair.torchbus_whole_version = version(whole)
            self._digest.add(sharding.whole(whole))
            return _copy(whole, pair.sharded_param)
        key = id(whole)
        if key in self._handed_out:
            self._handed_out.discard(key)
            return _copy(whole, pair.sharded_param)
        if (closely or key in self._hidden) and _copy(whole, pair.sharded_param):
            self._hidden.add(key)
            return True
        return False

    def report(self, flags: bytearray) -> int:
        """Set this rank's flag, and return a checksum of the writes since the last call."""
        flags[self._place] = self._has_unseen
        return self._digest.take()

    def hear(self, flags: bytes) -> None:
        """Note whether any rank has written without a trace.

        Only one rank may hold the written elements.
        """
        self._has_unseen = bool(flags[self._place])

    def trust_versions(self) -> bool:
        """Detect writes by versions and ``data`` from now on.

        Returns whether this finds all writes.
        """
        self._looks_closely = False
        return not self._has_unseen

    def _note_parts(self, model: Module) -> None:
        for pair in pairs_in(model):
            pair.torchbus_part_version = version(pair.sharded_param)
            if self._looks_closely:
                # the sum of a part that is still on the meta device is noted at the first forward
                pair.torchbus_part_sum = None if pair.sharded_param.is_meta else _sum(pair)

    # ``data`` ------------------------------------------------------------------------------------

    def _replace_data(self, kind: Any, write: Callable[..., None]) -> Callable[[], None]:
        kind.data = property(self._get_data, write)
        return lambda: delattr(kind, "data")

    def _get_data(self, tensor: Tensor) -> Tensor:
        self._handed_out.add(id(tensor))
        data: Tensor = DATA.__get__(tensor)
        return data

    def _set_data(self, tensor: Tensor, values: Tensor) -> None:
        """Copy values into a gathered parameter, whose memory torch's engine must find again."""
        if not self._is_gathered(tensor):
            DATA.__set__(tensor, values)
            return
        check_alike(tensor, values)
        DATA.__get__(tensor).copy_(DATA.__get__(values))
        self._handed_out.add(id(tensor))

    def _is_gathered(self, tensor: Tensor) -> bool:
        return any(
            tensor is whole
            for model in self._models
            for group in groups_in(model)
            for _, whole in gathered_now(group)
        )


def _tensors_of(model: Module) -> Iterator[Tensor]:
    """Yield a model's shards, and its whole parameters that are gathered."""
    for group in groups_in(model):
        yield from (pair.sharded_param for pair in group.fsdp_params)
        yield from (whole for _, whole in gathered_now(group))


@torch.no_grad()
def _copy(whole: Tensor, part: nn.Parameter) -> bool:
    """Copy a parameter's values to its shard. Returns whether they differed.

    A whole value may have fewer bits than the shard (bf16). An element of the shard stays as it is
    if it rounds to that value.
    """
    mine, new = compat.local_part(part), _local_part_of(whole, part)
    is_same = new == mine.to(new)
    if bool(is_same.all()):
        return False
    mine.copy_(torch.where(is_same, mine.to(new.device), new.to(mine.dtype)))
    return True


def _local_part_of(whole: Tensor, part: nn.Parameter) -> Tensor:
    """Return this rank's shard of gathered values, without a collective: some ranks may not ask."""
    if not isinstance(whole, DTensor):
        return compat.local_part(sharding.like(whole, part))
    # the ranks of a tensor group have different values, and each needs a part of its values
    divided: Any = part
    of_layers = whole.device_mesh.mesh_dim_names or ()
    names = divided.device_mesh.mesh_dim_names
    retained = [
        (name, placement)
        for name, placement in zip(names, divided.placements, strict=True)
        if name not in of_layers
    ]
    mesh = divided.device_mesh[tuple(name for name, _ in retained)]
    places = [Shard(one.dim) if hasattr(one, "dim") else one for _, one in retained]
    return distribute_tensor(whole.to_local(), mesh, places, src_data_rank=None).to_local()


def _sum(pair: Pair) -> int:
    return byte_sum(compat.local_part(pair.sharded_param))
