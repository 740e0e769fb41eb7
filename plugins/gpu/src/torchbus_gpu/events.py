"""The event that torchbus-gpu adds: measurements of the machine."""

from __future__ import annotations

from torchbus.plugin import hookspec


@hookspec
def system_metrics(metrics: dict[str, float], time_s: float) -> None:
    """Measurements of this rank's machine (names with units), ``time_s`` seconds after the session
    began. Every few seconds, from a monitor's thread: nothing that takes long, and no collective.
    """
