"""Names of modules, as a page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def short(name: str) -> str:
    """A name with ``*`` for each number.

    >>> short("blocks.11.mlp.up")
    'blocks.*.mlp.up'
    """
    return ".".join("*" if word.isdigit() else word for word in name.split("."))


def common(named: Mapping[str, T]) -> dict[str, T]:
    """One entry for names that differ in numbers only, if their values are the same."""
    found: dict[str, T] = {}
    for name, value in named.items():
        key = short(name)
        found[name if key in found and found[key] is not value else key] = value
    return found
