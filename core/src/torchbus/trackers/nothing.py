"""Stands in for a tracker's run if there is none."""

from __future__ import annotations


class Nothing:
    """Accepts every call, item and attribute, and does nothing.

    So ``logger.experiment["a/b"].append(1)`` works on every rank.
    """

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **kwargs: object) -> Nothing:
        return self

    def __getitem__(self, key: object) -> Nothing:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<no run on this rank>"
