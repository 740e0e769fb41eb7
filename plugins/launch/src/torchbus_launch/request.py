"""The request that a session makes of its launcher."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from torchbus_device.devices import DevicePlan


@dataclass(frozen=True)
class LaunchRequest:
    """The options of the session that concern the launcher.

    ``devices`` are those of one node, and ``explicit_devices`` is whether the user named them.
    ``launch_rule`` says why the session chose this ``launch``; it is "" if the user chose it.
    """

    devices: DevicePlan
    num_nodes: int = 1
    launch: str = "auto"
    explicit_devices: bool = False
    print_all_ranks: bool = False
    timeout: timedelta = timedelta(minutes=30)
    hang_timeout_s: float = 60.0
    freeze_timeout_s: float = 600.0
    launch_rule: str = ""
