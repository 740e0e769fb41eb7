"""Describes an item of a data set by a few words and numbers, which ranks can compare."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

DEEP = 6
FIELDS_AT_MOST = 100
SHOWN_CHARACTERS = 40
SHOWN_NUMBERS = 3


class ItemLeaf(NamedTuple):
    """One leaf of an item.

    ``kind`` is its type, shape and dtype. ``number`` is a weighted sum of its values, or 0.0 for
    text. Equal values give equal sums up to rounding. ``text`` is a checksum if the leaf has no
    numbers, else "". ``shown`` describes the leaf in messages.
    """

    kind: str
    number: float
    text: str
    shown: str

    def like(self, other: ItemLeaf) -> bool:
        """Whether both are equal, up to the last digits, which may differ between processors."""
        both_nan = math.isnan(self.number) and math.isnan(other.number)
        rounds = 1e-6 if "float" in self.kind or "complex" in self.kind else 1e-12
        near = both_nan or math.isclose(self.number, other.number, rel_tol=rounds, abs_tol=1e-30)
        return (self.kind, self.text) == (other.kind, other.text) and near


def fields_of(value: object, path: str = "") -> dict[str, ItemLeaf]:
    """Return the first hundred leaves of an item by their paths, such as ``[0]["image"]``."""
    found: dict[str, ItemLeaf] = {}
    for where, field in _walk(value, path, DEEP):
        found[where] = field
        if len(found) == FIELDS_AT_MOST:
            break
    return found


def _walk(value: object, path: str, deep: int) -> Iterator[tuple[str, ItemLeaf]]:
    parts = _parts(value) if deep else None
    if parts is None:
        yield path, _field(value)
        return
    for name, part in parts:
        yield from _walk(part, path + name, deep - 1)


def _parts(value: object) -> list[tuple[str, object]] | None:
    """Return the members of a container, each with its step in the path, or None for a leaf."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", value[key]) for key in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", part) for name, part in zip(value._fields, value, strict=True)]
    if isinstance(value, list | tuple):
        return (
            None
            if _are_numbers(value)
            else [(f"[{place}]", part) for place, part in enumerate(value)]
        )
    if (
        _is_plain(value)
        or hasattr(value, "__array__")
        or hasattr(value, "tobytes")
        or callable(value)
    ):
        return None
    held = getattr(value, "__dict__", None)
    return [(f".{name}", part) for name, part in held.items()] if held else None


def _field(value: object) -> ItemLeaf:
    kind = type(value).__name__
    numbers = _numbers(value)
    if numbers is not None:
        shape = (
            ""
            if isinstance(value, bool | int | float)
            else f" {tuple(numbers.shape)} {str(numbers.dtype).removeprefix('torch.')}"
        )
        return ItemLeaf(kind + shape, weighted(numbers), "", _shown(kind + shape, numbers))
    if isinstance(value, str | bytes):
        return ItemLeaf(kind, 0.0, _checksum(value), repr(value[:SHOWN_CHARACTERS]))
    if isinstance(value, set | frozenset):
        return ItemLeaf(
            kind, 0.0, _checksum(repr(sorted(map(repr, value)))), f"{kind} of {len(value)}"
        )
    text = kind if callable(value) or " at 0x" in repr(value) else repr(value)
    return ItemLeaf(kind, 0.0, _checksum(text), text[:SHOWN_CHARACTERS])


def _shown(kind: str, numbers: Tensor) -> str:
    first = [
        f"{value:.6g}" if isinstance(value, float) else str(value)
        for value in numbers.reshape(-1)[:SHOWN_NUMBERS].tolist()
    ]
    return (
        first[0]
        if numbers.numel() == 1
        else f"{kind} {', '.join(first)}{', ...' if numbers.numel() > SHOWN_NUMBERS else ''}"
    )


def _numbers(value: object) -> Tensor | None:
    """Return a leaf's values as a tensor, or None if it has no numbers that can be read."""
    if isinstance(value, str | bytes | set | frozenset) or value is None:
        return None
    try:
        if isinstance(value, Tensor):
            return value.detach().to_dense() if value.layout != torch.strided else value.detach()
        if hasattr(value, "tobytes") and not hasattr(value, "dtype"):  # an image
            return torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8)
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def weighted(numbers: Tensor) -> float:
    """Sum the values with a weight for each place, so that another order gives another number."""
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers)
    flat = numbers.reshape(-1).to("cpu", torch.float64)
    places = torch.arange(1, flat.numel() + 1, dtype=torch.float64)
    return float((flat * (1 + places.square().mul(0.6180339887498949).frac())).sum())


def _are_numbers(values: Sequence[object]) -> bool:
    return len(values) > 8 and all(isinstance(value, bool | int | float) for value in values)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(
        value, bool | int | float | complex | str | bytes | set | frozenset | Tensor
    )


def _checksum(text: str | bytes) -> str:
    return f"{zlib.crc32(text.encode(errors='replace') if isinstance(text, str) else text):08x}"
