"""Nested settings, for trackers that keep a flat list of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def flat(values: Mapping[str, object], between: str = ".") -> dict[str, object]:
    """Return the values of nested dicts by their joined names, as in ``{"net.width": 64}``."""
    return dict(_items(values, between, ""))


def _items(values: Mapping[str, object], between: str, before: str) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and value:
            yield from _items(value, between, f"{name}{between}")
        else:
            yield name, value
