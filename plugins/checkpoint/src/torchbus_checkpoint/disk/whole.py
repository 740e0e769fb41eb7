"""Where the parts of a tensor are, and whether they are the whole of it."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import torch

Shape = tuple[int, ...]


class Part(NamedTuple):
    """A part of a tensor: where it begins in the whole one, its shape, and its place on the disk.

    ``place`` begins with the name of the file.
    """

    offsets: Shape
    shape: Shape
    place: Any


class Whole(NamedTuple):
    """A tensor in parts."""

    dtype: torch.dtype
    shape: Shape
    parts: list[Part]


def numbers(value: Iterable[Any]) -> Shape:
    """Return sizes or offsets. Raises ValueError if they are something else."""
    found = tuple(value)
    if any(type(one) is not int or one < 0 for one in found):
        raise ValueError(f"{found!r} in it are not sizes")
    return found


def refuse_gaps(name: str, one: Whole) -> None:
    """Raise ValueError if the parts are not the whole tensor, each number once."""
    for part in one.parts:
        ends = [at + size for at, size in zip(part.offsets, part.shape, strict=True)]
        if len(ends) != len(one.shape) or any(map(int.__gt__, ends, one.shape)):
            raise ValueError(f"a part of {name} is outside of it")
    if sum(prod(part.shape) for part in one.parts) != prod(one.shape):
        raise ValueError(f"the parts of {name} are not the whole of it")
    if one.shape and _is_twice([part for part in one.parts if prod(part.shape)]):
        raise ValueError(f"parts of {name} overlap")


def _is_twice(parts: list[Part]) -> bool:
    """Whether two parts have a number in common. Only neighbours in the first dimension may."""
    around: list[Part] = []
    for part in sorted(parts, key=lambda one: one.offsets):
        around = [one for one in around if one.offsets[0] + one.shape[0] > part.offsets[0]]
        if any(_overlap(one, part) for one in around):
            return True
        around.append(part)
    return False


def _overlap(one: Part, other: Part) -> bool:
    return all(
        a < b + other_size and b < a + size
        for a, size, b, other_size in zip(
            one.offsets, one.shape, other.offsets, other.shape, strict=True
        )
    )
