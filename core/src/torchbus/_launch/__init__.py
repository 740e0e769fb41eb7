"""How a session gets its ranks: it joins those that a launcher started, or starts them itself."""

from __future__ import annotations

from torchbus._launch.job import Job
from torchbus._launch.request import Request
from torchbus._launch.start.spawn import Call

__all__ = ["Call", "Job", "Request", "start"]


def start(request: Request, call: Call | None = None) -> Job:
    """Join the ranks that are there, or start them; ``call`` is the call of a decorated function that the session is for. Returns
    this rank's job. Raises LaunchError or UsageError."""
    from torchbus._launch.join import joining
    from torchbus._launch.start import choice, fork, relaunch, spawn

    place = joining.find(request)
    if place is not None:
        return joining.join(place, request)
    request = choice.resolve(request)
    if request.launch == "fork":
        return fork.start(request)
    if request.launch == "spawn":
        return spawn.start(request, call)
    return relaunch.start(request)
