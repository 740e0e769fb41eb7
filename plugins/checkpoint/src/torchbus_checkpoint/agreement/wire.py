"""What ranks say to each other about a checkpoint, as JSON: no code can be in it, which a pickle may hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch

PLAIN = (str, int, float, bool, type(None))
OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def written(value: Any) -> bytes:
    """Plain values, lists, tuples, dicts, and the plans of torch.distributed.checkpoint (DCP). Raises TypeError for anything else."""
    return json.dumps(_plain(value)).encode()


def read(data: bytes) -> Any:
    """Raises ValueError or KeyError for what ``written`` does not write."""
    return _object(json.loads(data))


def _plain(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    if type(value) is list:
        return [_plain(one) for one in value]
    if type(value) is dict:
        return {"dict": [[_plain(key), _plain(one)] for key, one in value.items()]}
    if isinstance(value, OF_TORCH):
        return {"torch": str(value).removeprefix("torch.")}
    name = type(value).__name__
    if _kinds().get(name) is not type(value):
        raise TypeError(f"a {type(value).__module__}.{name} in a checkpoint's plan: ranks tell each other plain values and torch's own plans only")
    return {name: _parts(value)}


def _parts(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [_plain(one) for one in value]


def _object(value: Any) -> Any:
    if isinstance(value, list):
        return [_object(one) for one in value]
    if not isinstance(value, dict):
        return value
    ((name, parts),) = value.items()
    if name == "dict":
        return {_object(key): _object(one) for key, one in parts}
    if name == "torch":
        return _of_torch(parts)
    return _made(_kinds()[name], parts)


def _made(kind: Any, parts: Any) -> Any:
    if isinstance(parts, dict):
        return kind(**{name: _object(one) for name, one in parts.items()})
    return kind[parts] if isinstance(parts, str) else kind(_object(one) for one in parts)


def _of_torch(name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, OF_TORCH):
        raise ValueError(f"torch.{name} is no dtype, layout or memory format")
    return found


@cache
def _kinds() -> dict[str, Callable[..., Any]]:
    """All that a plan is made of, by name. Imported late: slow."""
    from torch.distributed.checkpoint import filesystem, metadata, planner, storage

    of_dcp: Sequence[Any] = (
        planner.SavePlan, planner.WriteItem, planner.WriteItemType, planner.TensorWriteData, planner.BytesIOWriteData, storage.WriteResult,
        metadata.MetadataIndex, metadata.ChunkStorageMetadata, metadata.TensorProperties, filesystem._StoragePrefix, filesystem._StorageInfo,
    )  # fmt: skip
    return {kind.__name__: kind for kind in (*of_dcp, tuple, torch.Size)}
