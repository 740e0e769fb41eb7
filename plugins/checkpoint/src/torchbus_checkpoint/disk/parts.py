"""Files with each rank's parts of tensors, in the format of torch.distributed.checkpoint (DCP).

This module calls DCP's planner and storage in the order that its documentation gives. DCP's
``save`` and ``load`` would gather the plans by collectives, which a thread must not do beside those
of the loop.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
    FileSystemWriter,
    Metadata,
)
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from torchbus_checkpoint.agreement.exchange import Exchange
from torchbus_checkpoint.disk import metadata
from torchbus_checkpoint.disk.divided import Groups
from torchbus_checkpoint.errors import CheckpointError

FLAGS = {"rb": os.O_RDONLY, "wb": os.O_CREAT | os.O_WRONLY | os.O_TRUNC}


class Files(FileSystem):
    """Opens files with ``os.open``: a session may have replaced ``open`` on its ranks."""

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with os.fdopen(os.open(path, FLAGS[mode], 0o666), mode) as stream:
            yield cast(io.IOBase, stream)


def write(folder: Path, groups: Groups, exchange: Exchange) -> list[str]:
    """Write this rank's parts, and on rank 0 the tensors that are not sharded.

    All ranks call it. Returns the names of this rank's files.
    """
    planner, storage = DefaultSavePlanner(), FileSystemWriter(folder)
    storage.fs = Files()
    planner.set_up_planner(groups, is_coordinator=exchange.is_main)
    storage.set_up_storage_writer(exchange.is_main)
    plan = storage.prepare_local_plan(planner.create_local_plan())
    plans = exchange.gather(plan)
    index = Metadata({})
    left: list[list[int] | None] = []
    if exchange.is_main:
        finished, index = planner.create_global_plan(plans)
        refuse_gaps(index, folder)
        left = list(map(_left, plans, finished))
    plan = _numbered(storage, _only(plan, exchange.scatter(left)), exchange.rank)
    mine = _written(storage, planner.finish_plan(plan), planner)
    results = exchange.gather(mine)
    if exchange.is_main:
        storage.finish(index, results)
    own = sorted({one.storage_data.relative_path for one in mine})
    return [*own, metadata.NAME] if exchange.is_main else own


def _left(plan: SavePlan, finished: SavePlan) -> list[int] | None:
    """Return which items of a rank's plan DCP has left to it, or None for all.

    It leaves a tensor that several ranks have to one of them.
    """
    if len(finished.items) == len(plan.items):
        return None
    kept = {item.index for item in finished.items}
    return [number for number, item in enumerate(plan.items) if item.index in kept]


def _only(plan: SavePlan, left: list[int] | None) -> SavePlan:
    return plan if left is None else replace(plan, items=[plan.items[number] for number in left])


def _numbered(storage: FileSystemWriter, plan: SavePlan, rank: int) -> SavePlan:
    """Let the plan's files have the rank in their names: the place of a plan among all of them."""
    return storage.prepare_global_plan([SavePlan([])] * rank + [plan])[rank]


def refuse_gaps(index: Metadata, folder: Path) -> None:
    """Raise CheckpointError if the parts of a tensor are not the whole of it, each number once."""
    for name, tensor in index.state_dict_metadata.items():
        if isinstance(tensor, TensorStorageMetadata):
            numbers = sum(chunk.sizes.numel() for chunk in tensor.chunks)
            if numbers != tensor.size.numel():
                raise CheckpointError(
                    f"checkpoint {folder} would not be complete: the ranks have {numbers} of the"
                    f" {tensor.size.numel()} numbers of {name}. state_dict() must return each part"
                    " on one rank"
                )


def _written(
    storage: FileSystemWriter, plan: SavePlan, planner: DefaultSavePlanner
) -> list[WriteResult]:
    """Raises OSError if the disk is full, which torch's writer turns into a RuntimeError."""
    try:
        return storage.write_data(plan, planner).wait()
    except RuntimeError as error:
        raise OSError(str(error)) from error


def read(folder: Path, groups: Groups) -> None:
    """Fill the tensors. Of a sharded tensor, read this rank's part, however it was sharded before.

    Ranks send nothing to each other.
    """
    planner, storage = DefaultLoadPlanner(), FileSystemReader(folder)
    storage.fs = Files()
    index = metadata.read(folder)
    planner.set_up_planner(groups, index, True)
    storage.set_up_storage_reader(index, True)
    plan = storage.prepare_local_plan(planner.create_local_plan())
    storage.read_data(planner.finish_plan(plan), planner).wait()
