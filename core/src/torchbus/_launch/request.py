"""What the session asks of the launcher."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from torchbus._ranks.devices import DevicePlan
from torchbus._ranks.world import DEFAULT_TIMEOUT

FORMS = ("auto", "script", "fork", "spawn")


@dataclass(frozen=True)
class Request:
    """``devices`` are those of one node; ``explicit_devices`` says that the user named them. ``launch_rule``: in words, why ``launch``
    is what it is, where the session has chosen it."""

    devices: DevicePlan
    num_nodes: int = 1
    launch: str = "auto"
    explicit_devices: bool = False
    print_all_ranks: bool = False
    timeout: timedelta = DEFAULT_TIMEOUT
    hang_timeout_s: float = 60.0
    freeze_timeout_s: float = 600.0
    launch_rule: str = ""
