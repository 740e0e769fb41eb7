"""What a forward writes to parameters: a clamp, a norm, a moving average of another model.

Torch's engine loses it: gathered values are let go after the forward, and those that were gathered
ahead are older than a write to this rank's part.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torchbus.plugin import Context, dtensors

from torchbus_sharded._compat.fsdp2 import (
    Pair,
    gather_after_writes,
    gathered_now,
    let_go_of_early,
    pairs_in,
    units_in,
)
from torchbus_sharded._compat.tensors import DATA, version
from torchbus_sharded.dtensor.writing import check_alike, set_data


class Writes:
    """Keeps it. A write shows in the tensor's version, unless it goes through ``data``.

    Nor does one of ``torch._foreach_*`` to parts of parameters, so their numbers are compared too
    in the first backwards.
    """

    def __init__(self, session: Context) -> None:
        self._models: weakref.WeakSet[Module] = weakref.WeakSet()
        self._handed_out: set[int] = set()
        self._digest = 0
        self._looks_closely, self.has_unseen = True, False
        for kind, write in ((nn.Parameter, self._set_data), (DTensor, set_data)):
            undo = self._replace_data(kind, write)
            session.on_close.callback(session.seams.note(f"{kind.__name__}.data", undo))

    def add(self, model: Module) -> None:
        """Add a model that was divided."""
        self._models.add(model)
        self._note_parts(model)

    def begin(self, model: Module) -> None:
        """A forward begins. What it gathers is as new as the parts are now."""
        self.keep(model)
        self._handed_out.clear()
        self._note_parts(model)

    def refresh(self, unit: Module) -> None:
        """Before a unit is gathered: drop what was gathered before its parts were written.

        All ranks call it, and have written the same.
        """
        pairs = pairs_in(unit)
        if self._looks_closely and any(_sum(pair) != pair.torchbus_part_sum for pair in pairs):
            self.has_unseen = True
        if self.has_unseen or any(
            self._is_written(pair.sharded_param, pair.torchbus_part_version) for pair in pairs
        ):
            self._handed_out -= {id(pair.sharded_param) for pair in pairs}
            self._note_parts(unit)
            let_go_of_early(unit)
            gather_after_writes(unit)

    def keep(self, unit: Module) -> None:
        """Copy what was written to the unit's gathered parameters to this rank's parts of them."""
        written = [
            (pair, whole)
            for pair, whole in gathered_now(unit)
            if self._is_written(whole, getattr(pair, "torchbus_whole_version", 0))
        ]
        for pair, whole in written:
            pair.torchbus_whole_version = version(whole)
            self._handed_out.discard(id(whole))
            self._copy(whole, pair.sharded_param)
        if written:
            gather_after_writes(unit)

    def keep_all(self) -> None:
        """Do so for all units that are gathered now."""
        for model in self._models:
            for unit in units_in(model):
                self.keep(unit)

    def settle(self) -> None:
        """The versions are enough from now on, unless a write had not changed one."""
        self._looks_closely = False

    def digest(self) -> int:
        """A checksum of what was kept since the last call. It is the same on ranks that agree."""
        digest, self._digest = self._digest, 0
        return digest

    def _note_parts(self, model: Module) -> None:
        for pair in pairs_in(model):
            pair.torchbus_part_version = version(pair.sharded_param)
            if self._looks_closely:
                pair.torchbus_part_sum = _sum(pair)

    def _is_written(self, tensor: Tensor, known: int) -> bool:
        return version(tensor) != known or id(tensor) in self._handed_out

    @torch.no_grad()
    def _copy(self, whole: Tensor, part: nn.Parameter) -> None:
        """A gathered value may have fewer bits than the part (bf16), which stays if it is equal."""
        values = dtensors.whole(whole)
        self._digest = crc32(_bits(values).to_bytes(8, "little"), self._digest)
        own, new = dtensors.own_part(part), dtensors.own_part(dtensors.like(values, part))
        own.copy_(torch.where(new == own.to(new), own.to(new.device), new.to(own.dtype)))

    # ``data`` ------------------------------------------------------------------------------------

    def _replace_data(self, kind: Any, write: Callable[..., None]) -> Callable[[], None]:
        kind.data = property(self._get_data, write)
        return lambda: delattr(kind, "data")

    def _get_data(self, tensor: Tensor) -> Tensor:
        self._handed_out.add(id(tensor))
        data: Tensor = DATA.__get__(tensor)
        return data

    def _set_data(self, tensor: Tensor, values: Tensor) -> None:
        """Torch's engine goes on with the memory that a gathered parameter has."""
        if not self._is_gathered(tensor):
            return DATA.__set__(tensor, values)
        check_alike(tensor, values)
        DATA.__get__(tensor).copy_(DATA.__get__(values))
        self._handed_out.add(id(tensor))

    def _is_gathered(self, tensor: Tensor) -> bool:
        return any(
            tensor is whole
            for model in self._models
            for unit in units_in(model)
            for _, whole in gathered_now(unit)
        )


def _sum(pair: Pair) -> int:
    return _bits(dtensors.own_part(pair.sharded_param))


def _bits(tensor: Tensor) -> int:
    """The sum of its bytes. It does not depend on the order in which they are added."""
    return int(tensor.detach().reshape(-1).view(torch.uint8).sum(dtype=torch.int64))
