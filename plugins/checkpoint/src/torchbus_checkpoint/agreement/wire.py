"""Values that ranks exchange about a checkpoint, as JSON. Unlike a pickle, it can hold no code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from torchbus_checkpoint._compat import kinds_of_dcp
from torchbus_checkpoint.state.jsonable import from_json, to_json


def written(value: object) -> bytes:
    """Write plain values, lists, tuples, dicts, and plans of torch.distributed.checkpoint (DCP).

    Raises TypeError for anything else.
    """
    return json.dumps(_plain(value)).encode()


def read(data: bytes) -> Any:
    """Read what ``written`` wrote. Raises ValueError or KeyError for anything else."""
    return _object(json.loads(data))


def _plain(value: object) -> object:
    return to_json(value, _part)


def _part(value: object) -> object:
    name = type(value).__name__
    if _kinds().get(name) is not type(value):
        raise TypeError(
            f"a {type(value).__module__}.{name} in a checkpoint's plan: ranks exchange only plain"
            " values and torch's own plans"
        )
    if isinstance(value, Enum):
        return {name: value.name}
    assert is_dataclass(value)
    return {name: {field.name: _plain(getattr(value, field.name)) for field in fields(value)}}


def _object(value: object) -> Any:
    return from_json(value, _made)


def _made(name: str, parts: Any) -> object:
    kind: Any = _kinds()[name]
    if isinstance(parts, dict):
        return kind(**{name: _object(one) for name, one in parts.items()})
    return kind[parts]


@cache
def _kinds() -> dict[str, Callable[..., Any]]:
    """The classes that a plan is made of, by name. Imported late, because the import is slow."""
    from torch.distributed.checkpoint import metadata, planner

    of_dcp: Sequence[Any] = (
        planner.SavePlan,
        planner.WriteItem,
        planner.WriteItemType,
        planner.TensorWriteData,
        metadata.MetadataIndex,
        metadata.ChunkStorageMetadata,
        metadata.TensorProperties,
        *kinds_of_dcp(),
    )
    return {kind.__name__: kind for kind in of_dcp}
