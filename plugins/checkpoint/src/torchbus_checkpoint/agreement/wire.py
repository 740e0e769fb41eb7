"""Values that ranks exchange about a checkpoint, as JSON. Unlike a pickle, it can hold no code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch

from torchbus_checkpoint._compat import kinds_of_dcp

PLAIN = (str, int, float, bool, type(None))
OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def written(value: object) -> bytes:
    """Write plain values, lists, tuples, dicts, and plans of torch.distributed.checkpoint (DCP).

    Raises TypeError for anything else.
    """
    return json.dumps(_plain(value)).encode()


def read(data: bytes) -> Any:
    """Read what ``written`` wrote. Raises ValueError or KeyError for anything else."""
    return _object(json.loads(data))


def _plain(value: object) -> object:
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
        raise TypeError(
            f"a {type(value).__module__}.{name} in a checkpoint's plan: ranks exchange only plain"
            " values and torch's own plans"
        )
    return {name: _parts(value)}


def _parts(value: object) -> object:
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    assert isinstance(value, tuple)
    return [_plain(one) for one in value]


def _object(value: object) -> object:
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


def _of_torch(name: str) -> object:
    found = getattr(torch, name, None)
    if not isinstance(found, OF_TORCH):
        raise ValueError(f"torch.{name} is not a dtype, layout or memory format")
    return found


@cache
def _kinds() -> dict[str, Callable[..., Any]]:
    """The classes that a plan is made of, by name. Imported late, because the import is slow."""
    from torch.distributed.checkpoint import metadata, planner, storage

    of_dcp: Sequence[Any] = (
        planner.SavePlan,
        planner.WriteItem,
        planner.WriteItemType,
        planner.TensorWriteData,
        storage.WriteResult,
        metadata.MetadataIndex,
        metadata.ChunkStorageMetadata,
        metadata.TensorProperties,
        *kinds_of_dcp(),
    )
    return {kind.__name__: kind for kind in (*of_dcp, tuple, torch.Size)}
