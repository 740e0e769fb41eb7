"""Every function is there, and does nothing."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    return lambda *_, **__: None
