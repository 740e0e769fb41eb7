"""Marks functions as events, and as listeners to events."""

from __future__ import annotations

import pluggy

hookspec = pluggy.HookspecMarker("torchbus")
hookimpl = pluggy.HookimplMarker("torchbus")

__all__ = ["hookimpl", "hookspec"]
