"""How a session gets its ranks: it joins those of a launcher, or starts its own."""

from __future__ import annotations

import os

from torchbus.errors import LaunchError

from torchbus_launch.job import Job
from torchbus_launch.request import LaunchRequest
from torchbus_launch.spawn import DecoratedCall

__all__ = ["DecoratedCall", "Job", "LaunchRequest", "start"]


FILES = 32
"""About the number of files that a session of two ranks opens."""


def start(request: LaunchRequest, call: DecoratedCall | None = None) -> Job:
    """Join the launcher's ranks, or start ranks, and return this rank's job.

    ``call`` is the call of the decorated function that the session belongs to, if any. Raises
    LaunchError or UsageError.
    """
    _refuse_few_files()
    from torchbus_launch import (
        choice,
        fork,
        joining,
        launched_rank,
        relaunch,
        spawn,
        variables,
        worker,
    )

    worker.refuse_ranks()
    if request.devices.kind == "cpu":
        variables.refuse_unknown_interface()
    place = launched_rank.find(request)
    if place is not None:
        return joining.join(place, request)
    request = choice.resolve(request)
    if request.launch == "fork":
        return fork.start(request)
    if request.launch == "spawn":
        return spawn.start(request, call)
    return relaunch.start(request)


def _refuse_few_files() -> None:
    """Raise LaunchError if this process may not open enough files: torch would try forever."""
    opened: list[int] = []
    try:
        while len(opened) < FILES:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise LaunchError(
            f"the session can't open {FILES} files more: {error.strerror}. Raise the limit"
            " (`ulimit -n`), or close files before the block"
        ) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)
