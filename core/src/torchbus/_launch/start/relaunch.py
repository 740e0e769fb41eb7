"""Start the other local ranks by running the script again, with the words with which it was started."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from dataclasses import asdict

import torch

from torchbus._launch.job import Job
from torchbus._launch.join.joining import Place
from torchbus._launch.join.nodes import Nodes, find_nodes
from torchbus._launch.request import Request
from torchbus._launch.start import inherited
from torchbus._launch.start.children import Child, end, error_file, standard_input
from torchbus._launch.store import secret
from torchbus._launch.store.roll_call import RollCall
from torchbus._launch.store.sealed import SealedStore
from torchbus._launch.watch.fair import FairClock
from torchbus._ranks.world import World
from torchbus.errors import LaunchError, UsageError

_started = False


def start(request: Request) -> Job:
    """This process is local rank 0 of its node. Returns when all ranks of all nodes have joined."""
    global _started
    words = command()
    if _started:
        raise UsageError(
            "a second session that runs the script again: its ranks would meet the first session on their way. "
            'Use launch="fork" for both'
        )
    nodes = find_nodes(request)
    store = nodes.open_store(request)
    children = [start_child(words, nodes, store, local_rank, request) for local_rank in range(1, nodes.local_world_size)]
    _started = bool(children)
    world = nodes.world(0, request, store, "session")
    wait_until_joined(store, world, children)
    return Job(world, request, children=children)


def command() -> list[str]:
    """The command that started this process. Raises UsageError where there is no script to run again."""
    main = sys.modules["__main__"]
    words = sys.orig_argv[1:]
    remedy = 'use launch="fork", which divides the block alone, or put the code in a file and use `torchbus run FILE`'
    module = main.__spec__.name if main.__spec__ is not None else ""
    if module.split(".")[0] in ("pytest", "ipykernel", "ipykernel_launcher", "IPython"):
        raise UsageError(f"this code runs under {module}, which can't be run again for each rank: {remedy}")
    if not (module or "-c" in words or os.path.exists(getattr(main, "__file__", ""))):
        raise UsageError(f"this code was typed at a prompt or read from stdin, so there is no script to run again: {remedy}")
    return [sys.executable, *words]


def refuse_start_at_a_prompt() -> None:
    """Raise UsageError where other code is typed after this: a rank that is forked here would wait for it as a second kernel."""
    main = sys.modules["__main__"]
    if "get_ipython" in vars(main) or hasattr(sys, "ps1"):
        raise UsageError(
            "session(...).start() with several ranks in a notebook or at a prompt: what is typed afterwards reaches one rank only. Put the loop in "
            "one cell, under `with session(...):`"
        )


def wait_until_joined(store: SealedStore, world: World, children: list[Child], within_s: float = math.inf, late: str = "") -> None:
    """Count the ranks in; a child that ends before it has joined is an error that shows its stderr, and so is one that has not come
    ``within_s``, with the words ``late``."""
    if world.num_nodes > 1:
        _compare_keys(store, world, children)
    joined = RollCall(store, "joined", world.rank, world.world_size)
    joined.say()
    clock = FairClock(0.05)
    while not joined.is_complete():
        if clock.seconds() > within_s:
            end(children, 0)
            raise LaunchError(late)
        for child in children:
            if child.poll() is not None:
                message = f"rank {child.rank} {child.words()} before it reached the session"
                end(children, 0)
                raise LaunchError(f"{message}; it wrote:\n{child.last_errors() or '(nothing)'}")
        time.sleep(0.005)


def _compare_keys(store: SealedStore, world: World, children: list[Child]) -> None:
    """Of the processes that were started by hand, one on each node."""
    try:
        secret.compare(store, world.rank, range(0, world.world_size, world.local_world_size))
    except LaunchError:
        end(children, 0)
        raise


def start_child(
    words: list[str], nodes: Nodes, store: SealedStore, local_rank: int, request: Request, told: bytes | None = None
) -> Child:  # fmt: skip
    """Start the command as rank ``local_rank`` of this node; ``told`` is what it reads from its standard input."""
    place = Place("session", nodes.first_rank + local_rank, nodes.world_size, local_rank, nodes.local_world_size,
                  nodes.node_rank, nodes.address, store.port, nodes.num_nodes == 1)  # fmt: skip
    given = asdict(place)
    del given["launched_by"]
    environ = os.environ | inherited.variable(given, store.key, request.devices.kind, runs_again=told is None)
    device = request.devices.device(local_rank)
    if device.index is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible_device(device)
    errors, stdin = error_file(), standard_input()
    process = subprocess.Popen(
        words,
        env=environ,
        cwd=inherited.START_DIRECTORY,
        stdin=stdin if told is None else subprocess.PIPE,
        stdout=None if request.print_all_ranks else subprocess.DEVNULL,
        stderr=None if request.print_all_ranks else errors,
        start_new_session=True,
    )
    os.close(stdin)
    if told is not None and process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # one that has died is noticed where it is waited for
            process.stdin.write(told)
    return Child(place.rank, process.pid, process, errors)


def visible_device(device: torch.device) -> str:
    """What CUDA_VISIBLE_DEVICES must say for one process to see this device alone."""
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return visible[device.index] if visible else str(device.index)
