"""Starts the other local ranks as fresh processes that call a decorated function."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import spawn
from typing import Any

from torchbus._launch.job import Job
from torchbus._launch.join.nodes import find_nodes
from torchbus._launch.request import Request
from torchbus._launch.start.pickling import pickled, place_of
from torchbus._launch.start.relaunch import start_child, wait_until_joined
from torchbus.errors import UsageError

BOOT = (
    "import pickle, sys; sys.path[:], given = pickle.load(sys.stdin.buffer); from"
    " torchbus._launch.start.spawned import main; main(given)"
)
REMEDY = (
    "define it with `def` at the top level of a module, or use launch='fork', which pickles nothing"
)


@dataclass(frozen=True)
class Call:
    """A call of a decorated function.

    ``decorated``: the function that the caller sees.
    ``session``: the arguments of its decorator.
    """

    decorated: Callable[..., object]
    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    session: tuple[tuple[object, ...], dict[str, object]]


def start(request: Request, call: Call | None) -> Job:
    """Start the other local ranks, and return this rank's job.

    This process is local rank 0 of its node and makes the call itself. Its changes to the arguments
    remain, and the caller gets its return value. Raises UsageError, before any rank starts, if
    something can't be sent to the others.
    """
    if call is None:
        raise UsageError(
            "launch='spawn' runs a function in new processes, and there is none here: decorate one,"
            " @session(strategy='ddp_spawn', ...), and call it; for a with block use launch='fork'"
            " or 'script'"
        )
    payload = _payload(call)
    nodes = find_nodes(request)
    store = nodes.open_store(request)
    words = [sys.executable, "-c", BOOT]
    children = [
        start_child(words, nodes, store, local_rank, request, payload)
        for local_rank in range(1, nodes.local_world_size)
    ]
    world = nodes.world(0, request, store, "spawn")
    wait_until_joined(store, world, children)
    return Job(world, request, children=children)


def _payload(call: Call) -> bytes:
    """Pickle the import path, the main module, the function's name and its arguments."""
    named = (
        find(call.function.__module__, call.function.__qualname__)
        if _importable(call.function)
        else None
    )
    if named is not call.decorated and named is not call.function:
        raise UsageError(
            f"launch='spawn': {place_of(call.function)} can't be found by its name in another"
            f" process: {REMEDY}"
        )
    preparation = {
        key: value
        for key, value in spawn.get_preparation_data("torchbus rank").items()
        if key != "authkey"
    }
    ours = (
        None
        if named is call.decorated
        else pickled(call.session, ("session(...)",), "launch='spawn'", REMEDY)
    )
    sent = pickled((call.args, call.kwargs), _names(call), "launch='spawn'", REMEDY)
    given = (preparation, call.function.__module__, call.function.__qualname__, ours, sent)
    return pickle.dumps((sys.path, pickle.dumps(given)))


def find(module: str, qualified_name: str) -> Any:
    """Return the object of that name, or None."""
    found: object = sys.modules.get(module)
    for name in qualified_name.split("."):
        found = getattr(found, name, None)
    return found


def _importable(function: Callable[..., object]) -> bool:
    """Return whether another process can import the function's module.

    It can't if the function was typed at a prompt.
    """
    main = sys.modules["__main__"]
    return (
        function.__module__ != "__main__"
        or main.__spec__ is not None
        or getattr(main, "__file__", None) is not None
    )


def _names(call: Call) -> tuple[str, ...]:
    """Return the function's names for its arguments."""
    code = getattr(call.function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return (
        *names[: len(call.args)],
        *(f"argument {index}" for index in range(len(names), len(call.args))),
    )
