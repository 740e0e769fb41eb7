"""Stands in for a tracker's run where there is none."""

from __future__ import annotations

from typing import Any


class Nothing:
    """Takes every call, item and attribute, and does nothing: ``logger.experiment["a/b"].append(1)`` works on every rank."""

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Nothing:
        return self

    def __getitem__(self, key: Any) -> Nothing:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<no run on this rank>"
