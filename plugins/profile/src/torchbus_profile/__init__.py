"""torchbus-profile: torch.profiler by real steps, and what each rank waits for."""

from __future__ import annotations

from torchbus_profile.plugin import Profile
from torchbus_profile.result import Operator, Profiled, Shares

__all__ = ["Operator", "Profile", "Profiled", "Shares"]
