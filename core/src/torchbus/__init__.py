"""torchbus: runs your own PyTorch training loop on several devices, with plugins."""

from __future__ import annotations

from torchbus.compat.required import require_torch

require_torch()

from torchbus import bootstrap  # noqa: E402

bootstrap.read()

from torchbus.bus.base import hookimpl, hookspec  # noqa: E402
from torchbus.session import Session, current, session  # noqa: E402
from torchbus.world import World  # noqa: E402

__all__ = ["Session", "World", "current", "hookimpl", "hookspec", "session"]
__version__ = "0.1.0"
