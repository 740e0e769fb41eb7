"""``launch="script"``: the session runs the script again for each other rank of this node."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torchbus import bootstrap
from torchbus.errors import LaunchError, UsageError
from torchbus.world import World

from torchbus_device import accelerators
from torchbus_launch import inherited, secret
from torchbus_launch import store as launch_store
from torchbus_launch.broadcast_log import FairClock
from torchbus_launch.children import Child, end, error_file, standard_input
from torchbus_launch.job import Job
from torchbus_launch.joining import Nodes, find_nodes
from torchbus_launch.launched_rank import LaunchedRank
from torchbus_launch.request import LaunchRequest
from torchbus_launch.store import SealedStore, StoreBarrier


@contextmanager
def environment_variables(values: Mapping[str, object]) -> Iterator[None]:
    """Set these environment variables inside the block, and restore them afterwards.

    Changes to other variables remain.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_started = False


def start(request: LaunchRequest) -> Job:
    """Run the script again for each other local rank; return once all ranks have joined.

    This process is local rank 0 of its node.
    """
    global _started
    argv = command()
    if _started and hydra_job() is None:
        raise UsageError(
            "a second session that runs the script again: its ranks would reach the first"
            ' session before it. Use launch="fork" for both'
        )
    nodes = find_nodes(request)
    store = nodes.open_store(request)
    children = [
        start_child(argv, nodes, store, local_rank, request)
        for local_rank in range(1, nodes.local_world_size)
    ]
    _started = bool(children)
    world = nodes.world(0, request, store, "session")
    wait_until_joined(store, world, children)
    return Job(world, request, children=children)


def command() -> list[str]:
    """Return the command that started this process.

    Raises UsageError if there is no script to run again.
    """
    main = sys.modules["__main__"]
    argv = sys.orig_argv[1:]
    remedy = (
        'use launch="fork", which divides only the block, or put the code in a file and use'
        " `torchbus run FILE`"
    )
    module = main.__spec__.name if main.__spec__ is not None else ""
    if module.split(".")[0] in ("pytest", "ipykernel", "ipykernel_launcher", "IPython"):
        raise UsageError(
            f"this code runs under {module}, which can't be run again for each rank: {remedy}"
        )
    if not (module or "-c" in argv or os.path.exists(getattr(main, "__file__", ""))):
        raise UsageError(
            "this code was typed at a prompt or read from stdin, so there is no script to run"
            f" again: {remedy}"
        )
    config, given = hydra_job(), sys.argv[1:]
    if config is not None:
        if argv[len(argv) - len(given) :] != given:
            raise UsageError(
                "this job runs in a process that a launcher of Hydra's has started, whose command"
                f" can't be run again for each rank: {remedy}"
            )
        argv = [*argv[: len(argv) - len(given)], *hydra_arguments(config, given)]
    return [sys.executable, *argv]


def refuse_start_at_a_prompt() -> None:
    """Raise UsageError in a notebook or at a prompt, where more code may follow.

    A rank that is forked there would wait for that code, as a second kernel.
    """
    main = sys.modules["__main__"]
    if "get_ipython" in vars(main) or hasattr(sys, "ps1"):
        raise UsageError(
            "session(...).start() with several ranks in a notebook or at a prompt: what is typed"
            " afterwards reaches one rank only. Put the loop in one cell, under `with"
            " session(...):`"
        )


def wait_until_joined(
    store: SealedStore,
    world: World,
    children: list[Child],
    within_s: float = math.inf,
    late: str = "",
) -> None:
    """Wait until all ranks have joined.

    Raises LaunchError with a child's stderr if the child ends before it has joined, and with the
    text ``late`` if a rank has not joined after ``within_s`` seconds.
    """
    if world.num_nodes > 1:
        _compare_keys(store, world, children)
    joined = StoreBarrier(store, "joined", world.rank, world.world_size)
    joined.say()
    clock = FairClock(0.05)
    while not joined.is_complete():
        if clock.seconds() > within_s:
            end(children, 0)
            raise LaunchError(late)
        for child in children:
            if child.poll() is not None:
                message = f"rank {child.rank} {child.describe_exit()} before it reached the session"
                end(children, 0)
                raise LaunchError(f"{message}; it wrote:\n{child.last_errors() or '(nothing)'}")
        time.sleep(launch_store.pause_s(0.005, world.num_nodes))


def _compare_keys(store: SealedStore, world: World, children: list[Child]) -> None:
    """Compare the keys of the processes that the user started, one on each node."""
    try:
        secret.compare(store, world.rank, range(0, world.world_size, world.local_world_size))
    except LaunchError:
        end(children, 0)
        raise


def start_child(
    argv: list[str],
    nodes: Nodes,
    store: SealedStore,
    local_rank: int,
    request: LaunchRequest,
    reported: bytes | None = None,
) -> Child:
    """Start the command as local rank ``local_rank`` of this node.

    ``reported`` is what the child reads from its standard input, or None for nothing.
    """
    place = nodes.place(local_rank, store.port)
    errors, stdin = error_file(), standard_input()
    process = subprocess.Popen(
        argv,
        env=_environment(place, store, request, runs_again=reported is None and not _started),
        cwd=bootstrap.START_DIRECTORY,
        stdin=stdin if reported is None else subprocess.PIPE,
        stdout=None if request.print_all_ranks else subprocess.DEVNULL,
        stderr=None if request.print_all_ranks else errors,
        start_new_session=True,
    )
    os.close(stdin)
    if reported is not None and process.stdin is not None:
        # if the child has died, wait_until_joined() reports it
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(reported)
    return Child(place.rank, process.pid, process, errors)


def _environment(
    place: LaunchedRank, store: SealedStore, request: LaunchRequest, runs_again: bool
) -> dict[str, str]:
    """Return this process's environment, with the variables for the rank's place and device."""
    given = asdict(place)
    del given["launched_by"]
    reported = inherited.variable(given, store.key, request.devices.kind, runs_again=runs_again)
    device = request.devices.device(place.local_rank)
    variable = accelerators.visible_variable(device.type)
    if device.index is not None and variable:
        reported[variable] = visible_device(device)
    return os.environ | reported


def visible_device(device: torch.device) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES, or its like, that shows only this device."""
    reported = os.environ.get(accelerators.visible_variable(device.type) or "", "")
    visible = [part.strip() for part in reported.split(",") if part.strip()]
    return visible[device.index] if visible else str(device.index)


WITH_VALUE = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd")
MULTIRUN = ("-m", "--multirun")
OURS = ("hydra.run.dir", "hydra.output_subdir", "hydra/job_logging", "hydra.mode")


def hydra_job() -> Any:
    """Return Hydra's configuration of the running job, or None without Hydra."""
    module = sys.modules.get("hydra.core.hydra_config")
    if module is None or not module.HydraConfig.initialized():
        return None
    return module.HydraConfig.get()


def hydra_arguments(config: Any, given: list[str]) -> list[str]:
    """Return the command line of a rank that joins this job of Hydra, in rank 0's folder.

    It has the job's overrides, also those of a multirun, and turns off the configuration and the
    log that Hydra would write in that folder.
    """
    flags: list[str] = []
    remaining = iter(given)
    for word in remaining:
        if word in WITH_VALUE:
            flags += [word, next(remaining, "")]
        elif word.startswith("-") and word not in MULTIRUN:
            flags.append(word)
    retained = [one for one in config.overrides.hydra if one.split("=")[0].lstrip("+~") not in OURS]
    folder = str(config.runtime.output_dir).replace("\\", "\\\\").replace("'", "\\'")
    mine = [f"hydra.run.dir='{folder}'", "hydra.output_subdir=null", "hydra/job_logging=none"]
    return [*flags, *config.overrides.task, *retained, *mine]
