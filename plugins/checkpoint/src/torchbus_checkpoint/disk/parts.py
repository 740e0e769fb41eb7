"""Files with the parts of tensors that each rank has, in the format of torch.distributed.checkpoint (DCP).

DCP's own planner and files, called in the order that its documentation names. Its ``save`` and ``load`` would gather plans by collectives,
which a thread must not do beside the loop's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem

from torchbus_checkpoint.agreement.exchange import Exchange
from torchbus_checkpoint.disk import metadata
from torchbus_checkpoint.disk.divided import Groups

FLAGS = {"rb": os.O_RDONLY, "wb": os.O_CREAT | os.O_WRONLY | os.O_TRUNC}


class Files(FileSystem):
    """A session may have replaced ``open`` on the ranks that it started."""

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with os.fdopen(os.open(path, FLAGS[mode], 0o666), mode) as stream:
            yield stream


def write(folder: Path, groups: Groups, exchange: Exchange) -> list[str]:
    """All ranks call it, each with its parts; tensors that are whole, rank 0 alone. Returns the names of this rank's files."""
    planner: Any = DefaultSavePlanner()
    storage: Any = FileSystemWriter(folder)
    storage.fs = Files()
    planner.set_up_planner(groups, is_coordinator=exchange.is_main)
    storage.set_up_storage_writer(exchange.is_main)
    plans, index = exchange.gather(storage.prepare_local_plan(planner.create_local_plan())), None
    if exchange.is_main:
        plans, index = planner.create_global_plan(plans)
        plans = storage.prepare_global_plan(plans)
    plan = planner.finish_plan(exchange.scatter(plans))
    results = exchange.gather(_written(storage, plan, planner))
    if exchange.is_main:
        storage.finish(index, results)
    own = sorted(path.name for path in folder.glob(f"__{exchange.rank}_*"))
    return [*own, metadata.NAME] if exchange.is_main else own


def _written(storage: Any, plan: Any, planner: Any) -> Any:
    """Raises OSError (disk full), of which torch's writer makes something else."""
    try:
        return storage.write_data(plan, planner).wait()
    except RuntimeError as error:
        raise OSError(str(error)) from error


def read(folder: Path, groups: Groups) -> None:
    """Fill the tensors: of one that is divided, this rank's part, whatever the parts were when it was written. Nothing is sent."""
    planner: Any = DefaultLoadPlanner()
    storage: Any = FileSystemReader(folder)
    storage.fs = Files()
    index = metadata.read(folder)
    planner.set_up_planner(groups, index, True)
    storage.set_up_storage_reader(index, True)
    plan = storage.prepare_local_plan(planner.create_local_plan())
    storage.read_data(planner.finish_plan(plan), planner).wait()
