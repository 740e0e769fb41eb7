"""What a started process inherits from the session that started it: place, key, random state."""

from __future__ import annotations

import base64
import json
import os
import random
import sys
import threading
import zlib
from collections.abc import Mapping
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

import torch
from torchbus import bootstrap
from torchbus.bootstrap import States, generator_states
from torchbus.bus import discovery
from torchbus.errors import RanksDiverged

from torchbus_device.devices import DevicePlan
from torchbus_launch import imports

POOL = 624  # the position of a Mersenne Twister after seeding, before the first draw
AT_FIRST = (POOL, POOL - 1)  # NumPy starts one lower if the system seeded it
DRAWS_WHEN_IMPORTED = "rich.style"  # draws one number from Python's generator for its ids
UNLIKE = (
    "{names} was drawn from before the block, and not identically on all ranks: the script runs"
    " again for each rank, and what it drew there (a split of the data, say) differs. Seed it at"
    " the top of the script, import torchbus before anything is drawn, or use launch='fork'"
)


def write(name: str, state: Any) -> None:
    """Set one generator to a state that ``generator_states`` returned."""
    if name == "torch":
        torch.set_rng_state(_torch_state(state))
    elif name == "random":
        random.setstate((state[0], tuple(state[1]), state[2]))
    else:
        sys.modules["numpy"].random.set_state(tuple(state))


def is_fresh(name: str, state: Any) -> bool:
    """Return whether nothing was drawn since the generator was seeded."""
    if name == "numpy":
        return state[2] in AT_FIRST
    if name == "random":
        return state[1][-1] == POOL or (state[1][-1] == 1 and DRAWS_WHEN_IMPORTED in sys.modules)
    found = torch.Generator()
    found.set_state(_torch_state(state))
    return torch.equal(
        torch.Generator().manual_seed(found.initial_seed()).get_state(), found.get_state()
    )


def continue_from(given: States) -> list[str]:
    """Continue from rank 0's states.

    Returns the names of generators whose states differ because this rank or rank 0 had drawn.
    """
    drawn = []
    for name, mine in generator_states().items():
        theirs = given.get(name, mine)
        if theirs == mine:
            continue
        if is_fresh(name, mine) and is_fresh(name, theirs):
            write(name, theirs)
        else:
            drawn.append(name)
    return drawn


def digests() -> dict[str, list[int]]:
    """Return a checksum of each generator's state, and whether the generator is fresh."""
    return {
        name: [zlib.crc32(json.dumps(state).encode()), int(is_fresh(name, state))]
        for name, state in generator_states().items()
    }


def refuse_unlike(theirs: Mapping[str, list[int]], drawn_before: list[str]) -> None:
    """At the beginning of the block, compare this rank's digests with ``theirs``, rank 0's.

    Raises RanksDiverged for generators that were drawn from and differ.
    """
    mine = digests()
    unlike = {
        name
        for name in mine.keys() & theirs.keys()
        if mine[name][0] != theirs[name][0] and not (mine[name][1] and theirs[name][1])
    }
    names = [GENERATORS[name] for name in GENERATORS if name in unlike or name in drawn_before]
    if names:
        raise RanksDiverged(UNLIKE.format(names=" and ".join(names)))


GENERATORS = {
    "torch": "torch's generator",
    "random": "Python's `random`",
    "numpy": "`numpy.random`",
}


def _torch_state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


LOOK_EVERY_S = 0.5
_guarded = threading.Event()


def leave_with(parent_pid: int) -> None:
    """End this process if its parent ends, until a guard watches it."""

    def watch() -> None:
        while not _guarded.wait(LOOK_EVERY_S):
            if os.getppid() != parent_pid:
                os._exit(1)

    _guarded.clear()
    threading.Thread(target=watch, name="torchbus-orphan", daemon=True).start()


def guarded() -> None:
    """Record that the session's guard now watches this process."""
    _guarded.set()


_given: dict[str, Any] | None = None
_is_used = False
_drawn_before: list[str] = []


def take_over(given: dict[str, Any]) -> None:
    """Become the rank that a session in another process has assigned to this process.

    The generators continue from rank 0's states at this point, so that an unseeded script draws the
    same numbers on every rank.
    """
    global _given, _drawn_before
    _given = given
    leave_with(parent_pid())
    _drawn_before = continue_from(given["generators"])
    calls = {entry.name: partial(_call, entry) for entry in discovery.every("launched_rank")}
    for name in calls.keys() & sys.modules.keys():
        calls.pop(name)()
    imports.follow(calls)


def _call(entry: EntryPoint) -> None:
    discovery.load(entry)()


def place() -> dict[str, Any] | None:
    """Return this rank's place; None after ``take``, or in a process that the user started."""
    return None if _given is None or _is_used else dict(_given["place"])


def key() -> bytes:
    """Return the key of the job, which comes from the rank that started this one."""
    assert _given is not None
    return bytes.fromhex(_given["key"])


def take() -> None:
    """Take the place, for the first session of this process.

    Raises RanksDiverged if the script has drawn different numbers than on rank 0.
    """
    global _is_used
    _is_used = True
    assert _given is not None
    if _given["at_entry"] is not None:
        refuse_unlike(_given["at_entry"], _drawn_before)


def parent_pid() -> int:
    """Return the process id of the rank that started this one."""
    return int(_given["pid"]) if _given else os.getppid()


def is_rank() -> bool:
    """Return whether a session started this process."""
    return _given is not None


def device_plan() -> DevicePlan | None:
    """Return the devices of a started rank, which sees only its own GPU, as number 0, or None."""
    if _given is None:
        return None
    count, kind = _given["place"]["local_world_size"], _given["kind"]
    return DevicePlan(kind, count, (0,) * count if kind != "cpu" else ())


def variable(place: dict[str, object], key: bytes, kind: str, runs_again: bool) -> dict[str, str]:
    """Return the environment variable for a rank at ``place`` on a device of this kind.

    Other users can't read it. ``runs_again`` is True if the rank runs the script up to this point.
    """
    at_entry = digests() if runs_again else None
    given = {
        "taken_over_by": __name__,
        "place": place,
        "key": key.hex(),
        "pid": os.getpid(),
        "kind": kind,
        "generators": bootstrap.imported,
        "at_entry": at_entry,
    }
    return {bootstrap.VARIABLE: json.dumps(given)}
