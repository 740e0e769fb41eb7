"""The launcher of a session: plans its devices, and joins or starts its ranks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torchbus.errors import LaunchError, UsageError
from torchbus.runtime import services

from torchbus_device.devices import DevicePlan, plan_devices
from torchbus_launch import inherited, launched_rank, relaunch
from torchbus_launch.job import Job
from torchbus_launch.request import LaunchRequest
from torchbus_launch.spawn import DecoratedCall

if TYPE_CHECKING:
    from torchbus.runtime.context import Context


LONGEST_TIMEOUT_S = 1e9
"""Torch counts milliseconds in 64 bits; this is 32 years."""
FILES = 32
"""About the number of files that a session of two ranks opens."""


class RankLauncher(services.Launcher):
    """Starts or joins the ranks of one session.

    Raises UsageError, before anything starts, for devices that this machine does not have.
    """

    def __init__(self, session: Context) -> None:
        options = session.options
        self._session = session
        self._devices = inherited.device_plan() or plan_devices(
            options["devices"], options["accelerator"]
        )
        self._request = _request(options, self._devices)
        self._call: DecoratedCall | None = None

    @property
    def device(self) -> torch.device:
        return self._devices.device(0)

    @property
    def timeout(self) -> timedelta:
        return self._request.timeout

    @property
    def ranks_asked_for(self) -> int:
        named = (
            self._devices.count * self._request.num_nodes
            if self._request.explicit_devices
            else self._request.num_nodes
        )
        has_strategy = self._session.options["strategy"] is not None
        return max(named, launched_rank.world_size_seen()) if has_strategy else named

    def has_many_ranks(self) -> bool:
        return (
            self._devices.count * self._request.num_nodes > 1 or launched_rank.world_size_seen() > 1
        )

    def refuse_prompt(self) -> None:
        if self.has_many_ranks() and launched_rank.world_size_seen() == 1:
            relaunch.refuse_start_at_a_prompt()

    def decorate(self, *call: Any) -> None:
        self._call = DecoratedCall(*call)

    def start(self, launch: str | None) -> Job:
        request = self._request
        if launch is not None:
            request = dataclasses.replace(request, launch=launch)
        job, self._call = start(request, self._call), None
        return job


def _request(options: Mapping[str, Any], devices: DevicePlan) -> LaunchRequest:
    """Return the session's request to the launcher. Raises UsageError for too long a timeout."""
    if options["timeout_s"] > LONGEST_TIMEOUT_S:
        raise UsageError(
            f"timeout_s={options['timeout_s']:g}: torch.distributed waits for at most"
            f" {LONGEST_TIMEOUT_S:g} seconds"
        )
    return LaunchRequest(
        devices,
        options["num_nodes"],
        options["launch"],
        options["devices"] != "auto",
        options["print_all_ranks"],
        timedelta(seconds=options["timeout_s"]),
        options["hang_timeout"],
        options["freeze_timeout"],
    )


def start(request: LaunchRequest, call: DecoratedCall | None = None) -> Job:
    """Join the launcher's ranks, or start ranks, and return this rank's job.

    ``call`` is the call of the decorated function that the session belongs to, if any. Raises
    LaunchError or UsageError.
    """
    _refuse_few_files()
    from torchbus_launch import choice, fork, joining, spawn, variables, worker

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
