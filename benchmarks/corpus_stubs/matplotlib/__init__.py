"""Stands in for matplotlib: draws nothing."""

from __future__ import annotations


def use(backend: str) -> None:
    pass
