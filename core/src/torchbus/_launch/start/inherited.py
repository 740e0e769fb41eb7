"""What a rank that the session started finds in its environment.

It is one variable, ``TORCHBUS_LAUNCH``, a JSON object. The session never sets ``RANK`` or
``WORLD_SIZE``, because many scripts then start a distributed mode of their own. The import of
torchbus reads the variable and removes it, so that no process that the script starts takes itself
for a rank.
"""

from __future__ import annotations

import json
import os
from typing import Any

from torchbus import bootstrap
from torchbus._launch.start import generators
from torchbus._launch.watch import orphan
from torchbus._ranks.devices import DevicePlan

START_DIRECTORY = os.getcwd()
_given: dict[str, Any] | None = None
_taken = False
_drawn_before: list[str] = []


def take_over(given: dict[str, Any]) -> None:
    """Become the rank at the place that the session of another process has given.

    The generators continue from rank 0's states at this point, so that an unseeded script draws the
    same numbers on every rank.
    """
    global _given, _drawn_before
    _given = given
    orphan.leave_with(parent_pid())
    _drawn_before = generators.take_over(given["generators"])


def place() -> dict[str, Any] | None:
    """Return this rank's place; None once it is taken, or in a process that the user started."""
    return None if _given is None or _taken else dict(_given["place"])


def key() -> bytes:
    """Return the key of the job, which comes from the rank that started this one."""
    assert _given is not None
    return bytes.fromhex(_given["key"])


def take() -> None:
    """Take the place, for the first session of this process.

    Raises RanksDiverged if the script has drawn different numbers than on rank 0.
    """
    global _taken
    _taken = True
    assert _given is not None
    if _given["at_entry"] is not None:
        generators.refuse_unlike(_given["at_entry"], _drawn_before)


def parent_pid() -> int:
    """Return the process id of the rank that started this one."""
    return int(_given["pid"]) if _given else os.getppid()


def is_rank() -> bool:
    """Return whether a session started this process."""
    return _given is not None


def device_plan() -> DevicePlan | None:
    """Return the devices of a started rank, which sees only its own GPU, as number 0."""
    if _given is None:
        return None
    count, kind = _given["place"]["local_world_size"], _given["kind"]
    return DevicePlan(kind, count, (0,) * count if kind != "cpu" else ())


def variable(place: dict[str, object], key: bytes, kind: str, runs_again: bool) -> dict[str, str]:
    """Return the environment variable for a rank at ``place`` on a device of this kind.

    Other users can't read it. ``runs_again``: whether the rank runs this script up to this point.
    """
    at_entry = generators.digests() if runs_again else None
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
