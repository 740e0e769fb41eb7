"""Converts plain values to JSON, and back. Unlike a pickle, JSON can hold no code.

Numbers, texts and lists stay as they are. Everything else becomes an object with one key, which
names its kind.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch

PLAIN = (str, int, bool, type(None))
OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
MOST_ALIKE = 100


def refuse_alike(keys: list[Any]) -> list[Any]:
    """Return the keys. Raise ValueError if many have the same hash, as their dict takes hours."""
    if len(keys) > MOST_ALIKE and max(Counter(map(hash, keys)).values()) > MOST_ALIKE:
        raise ValueError(f"more than {MOST_ALIKE} keys with one hash")
    return keys


DICTS: dict[str, Callable[..., Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": lambda pairs: Counter(dict(pairs)),
}
LISTS: dict[str, Callable[..., Any]] = {"tuple": tuple, "set": set, "Size": torch.Size}


def to_json(value: object, other: Callable[[object], object]) -> object:
    """Return the value in the types of JSON. ``other`` converts values of unknown types."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, list) and kind is list:
        return [to_json(one, other) for one in value]
    if isinstance(value, dict) and kind in (dict, OrderedDict, Counter):
        return {
            kind.__name__: [
                [to_json(key, other), to_json(one, other)] for key, one in value.items()
            ]
        }
    if isinstance(value, tuple | set) and kind in LISTS.values():
        return {kind.__name__: [to_json(one, other) for one in value]}
    if isinstance(value, complex):
        return {"complex": [to_json(value.real, other), to_json(value.imag, other)]}
    if isinstance(value, OF_TORCH):
        return {"torch": str(value).removeprefix("torch.")}
    return {"device": str(value)} if isinstance(value, torch.device) else other(value)


MOST_ITEMS = 1 << 22


def read_json(text: str | bytes) -> Any:
    """Parse JSON of at most MOST_ITEMS containers, as two bytes of text take a hundred in memory.

    Raises ValueError if the text is invalid, has more containers, or is nested too deeply.
    """
    data = text.encode() if isinstance(text, str) else text
    if data.count(b"[") + data.count(b"{") > MOST_ITEMS:
        raise ValueError(f"it has more than {MOST_ITEMS} lists and objects")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is too deep") from None


def from_json(value: Any, other: Callable[[str, Any], object]) -> Any:
    """Convert a value back. ``other`` converts the (name, content) of unknown types.

    Raises ValueError, TypeError or KeyError for anything that ``to_json`` does not write.
    """
    if isinstance(value, list):
        return [from_json(one, other) for one in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    if name in DICTS:
        pairs = [(from_json(key, other), from_json(one, other)) for key, one in content]
        refuse_alike([key for key, _ in pairs])
        return DICTS[name](pairs)
    if name in LISTS:
        items = [from_json(one, other) for one in content]
        return LISTS[name](refuse_alike(items) if name == "set" else items)
    return _single(name, content, other)


def _single(name: str, content: Any, other: Callable[[str, Any], object]) -> object:
    if name == "float":
        return float(content)
    if name == "complex":
        real, imaginary = (from_json(one, other) for one in content)
        return complex(real, imaginary)
    if name == "device":
        return torch.device(content)
    return _of_torch(content) if name == "torch" else other(name, content)


def _of_torch(name: str) -> object:
    found = vars(torch).get(name)  # getattr would import parts of torch
    if not isinstance(found, OF_TORCH):
        raise ValueError(f"torch.{name} is not a dtype, layout or memory format")
    return found
