"""How a session gets its ranks: it joins those of a launcher, or starts its own."""

from __future__ import annotations

from torchbus_launch.job import Job
from torchbus_launch.request import Request
from torchbus_launch.spawn import Call

__all__ = ["Call", "Job", "Request", "start"]


def start(request: Request, call: Call | None = None) -> Job:
    """Join the launcher's ranks, or start ranks, and return this rank's job.

    ``call``: the call of the decorated function that the session belongs to, if any.
    Raises LaunchError or UsageError.
    """
    from torchbus_launch import choice, fork, joining, places, relaunch, spawn

    place = places.find(request)
    if place is not None:
        return joining.join(place, request)
    request = choice.resolve(request)
    if request.launch == "fork":
        return fork.start(request)
    if request.launch == "spawn":
        return spawn.start(request, call)
    return relaunch.start(request)
