"""Writes and reads the files with each rank's parts of tensors.

This module calls the planners of torch.distributed.checkpoint (DCP), which know how tensors are
sharded, in the order that DCP's documentation gives. The files are written and read here. DCP's
``save`` and ``load`` would gather the plans by collectives, which a thread must not use while the
loop uses collectives, and its files contain a pickle.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, Metadata
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem, SavePlan

from torchbus_checkpoint.disk import folder, formats, pickled, tensors
from torchbus_checkpoint.disk.divided import DividedTensor, Groups, TensorPart, numbers, refuse_gaps
from torchbus_checkpoint.disk.formats import FileEntry, Manifest
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.exchange import CheckpointExchange

PREFIX = "part-"
Index = dict[str, DividedTensor]

# Write -------------------------------------------------------------------------------------------


def write(where: Path, groups: Groups, exchange: CheckpointExchange) -> dict[str, FileEntry]:
    """Write this rank's parts, and on rank 0 the tensors that are not sharded.

    All ranks must call this. Returns the entry of this rank's file, or an empty dict if it writes
    none.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner(_flat(groups), is_coordinator=exchange.is_main)
    plan = planner.create_local_plan()
    plans = exchange.gather(plan)
    left: list[list[int] | None] = []
    if exchange.is_main:
        finished, index = planner.create_global_plan([*plans])  # a copy: torch 2.6 changes the list
        refuse_missing(index, where)
        left = list(map(_left, plans, finished))
    chosen = exchange.scatter(left)
    items = plan.items if chosen is None else [plan.items[number] for number in chosen]
    content: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        assert item.tensor_data is not None
        chunk, size = item.tensor_data.chunk, item.tensor_data.size
        content[item.index.fqn].append([[*chunk.offsets], [*size], planner.resolve_data(item)])
    if not content:
        return {}
    name = f"{PREFIX}{exchange.rank}{folder.SUFFIX}"
    return {name: folder.write_file(where, name, dict(content), once=False)}


def _flat(groups: Groups) -> dict[str, Tensor]:
    return {f"{group}.{path}": one for group, them in groups.items() for path, one in them.items()}


def _left(plan: SavePlan, finished: SavePlan) -> list[int] | None:
    """Return the items of a rank's plan that remain after DCP's deduplication, or None for all.

    DCP lets only one rank write a tensor that several ranks have.
    """
    if len(finished.items) == len(plan.items):
        return None
    retained = {item.index for item in finished.items}
    return [number for number, item in enumerate(plan.items) if item.index in retained]


def refuse_missing(index: Metadata, where: Path) -> None:
    """Raise CheckpointError if the parts of a tensor do not add up to the size of the tensor."""
    for name, tensor in index.state_dict_metadata.items():
        if isinstance(tensor, TensorStorageMetadata):
            found = sum(chunk.sizes.numel() for chunk in tensor.chunks)
            if found != tensor.size.numel():
                raise CheckpointError(
                    f"checkpoint {where} would not be complete: the ranks have {found} of the"
                    f" {tensor.size.numel()} numbers of {name}. state_dict() must return each part"
                    " on one rank"
                )


# Read --------------------------------------------------------------------------------------------


def index(where: Path) -> Index:
    """Return where each part of each tensor is. Raises CheckpointError if a part is missing."""
    content = folder.manifest(where)
    if content["version"] <= formats.PICKLED:
        with folder.folder_opened(where, pickled.INDEX, content) as file:
            old = pickled.index(file)
            _check(old, content)
        return old
    found: Index = {}
    with folder.blamed(where, "its parts"):
        for name in content["files"]:
            if name.startswith(PREFIX):
                stem = name.removesuffix(folder.SUFFIX)
                _add(found, name, folder.described(where, stem, content))
        _check(found, content)
    return found


def _add(found: Index, file: str, parts: dict[str, list[Any]]) -> None:
    for name, them in parts.items():
        for number, (offsets, shape, tensor) in enumerate(them):
            whole = found.setdefault(name, DividedTensor(tensor.dtype, numbers(shape), []))
            if (whole.dtype, whole.shape) != (tensor.dtype, numbers(shape)):
                raise ValueError(f"parts of {name} do not fit together")
            whole.parts.append(TensorPart(numbers(offsets), tuple(tensor.shape), (file, number)))


def _check(found: Index, content: Manifest) -> None:
    for name, whole in found.items():
        refuse_gaps(name, whole)
        for part in whole.parts:
            if part.place[0] not in content["files"]:
                raise ValueError(
                    f"{name} is in {part.place[0]!r}, which the manifest does not name"
                )
    claimed = sum(prod(one.shape) * one.dtype.itemsize for one in found.values())
    if claimed > sum(entry["bytes"] for entry in content["files"].values()):
        raise ValueError(f"{claimed} bytes of tensors, more than its files have")


def read(where: Path, index: Index, groups: Groups) -> None:
    """Fill the tensors. Of a sharded tensor, read this rank's part, however it was sharded before.

    Ranks do not communicate.
    """
    planner, content = DefaultLoadPlanner(flatten_state_dict=False), folder.manifest(where)
    planner.set_up_planner(_flat(groups), _as_of_dcp(index), True)
    by_file: dict[str, list[tuple[ReadItem, Any]]] = defaultdict(list)
    with folder.blamed(where, "its parts"):
        for item in planner.create_local_plan().items:
            parts = index[item.storage_index.fqn].parts
            place = next(one.place for one in parts if one.offsets == item.storage_index.offset)
            by_file[place[0]].append((item, place))
    for name, items in by_file.items():
        with folder.folder_opened(where, name, content) as file:
            if content["version"] <= formats.PICKLED:
                for item, place in items:
                    _put(planner, item, pickled.part(file, place))
                continue
            with tensors.reading(file) as reader:
                specs = reader.content(lambda spec: spec)
                for item, place in items:
                    spec = specs[item.storage_index.fqn][place[1]][2]
                    _put(planner, item, reader.tensor(spec))


def _as_of_dcp(index: Index) -> Metadata:
    found: dict[str, Any] = {}
    for name, one in index.items():
        shapes = [(torch.Size(part.offsets), torch.Size(part.shape)) for part in one.parts]
        chunks = [ChunkStorageMetadata(offsets, sizes) for offsets, sizes in shapes]
        properties = TensorProperties(dtype=one.dtype)
        found[name] = TensorStorageMetadata(properties, torch.Size(one.shape), chunks)
    return Metadata(found)


def _put(planner: DefaultLoadPlanner, item: ReadItem, found: Tensor) -> None:
    for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        found = found.narrow(dim, start, length)
    target = planner.resolve_tensor(item).detach()
    if target.dtype != found.dtype:
        raise ValueError(f"{item.storage_index.fqn} is of type {found.dtype}, not {target.dtype}")
    target.copy_(found)
