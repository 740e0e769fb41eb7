"""What a rank that the session started finds in its environment.

One variable, ``TORCHBUS_LAUNCH``, a JSON object; never ``RANK`` or ``WORLD_SIZE``, at which many scripts start a
distributed mode of their own. It is read once, when torchbus is imported, and taken out of the environment, so that
no process which the script starts takes itself for a rank.
"""

from __future__ import annotations

import json
import os
from typing import Any

from torchbus._launch.start import generators
from torchbus._launch.watch import orphan
from torchbus._ranks.devices import DevicePlan

VARIABLE = "TORCHBUS_LAUNCH"
START_DIRECTORY = os.getcwd()
_given: dict[str, Any] | None = None
_taken = False
_imported: generators.States = {}
_drawn_before: list[str] = []


def read() -> None:
    """Read the variable. The generators go on from where rank 0's were at this point, so that an unseeded script draws alike."""
    global _given, _imported, _drawn_before
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        _imported = generators.read()
        return
    _given = given = json.loads(text)
    orphan.leave_with(parent_pid())
    _drawn_before = generators.take_over(given["generators"])


def place() -> dict[str, Any] | None:
    """The place of this rank; None in a process that the user started, or once it was taken."""
    return None if _given is None or _taken else dict(_given["place"])


def key() -> bytes:
    """The job's, from the rank that started this one."""
    assert _given is not None
    return bytes.fromhex(_given["key"])


def take() -> None:
    """The first session of this process takes the place. Raises RanksDiverged where the script has drawn other numbers than on rank 0."""
    global _taken
    _taken = True
    assert _given is not None
    if _given["at_entry"] is not None:
        generators.refuse_unlike(_given["at_entry"], _drawn_before)


def parent_pid() -> int:
    """The process id of the rank that started this one."""
    return int(_given["pid"]) if _given else os.getppid()


def is_rank() -> bool:
    """Whether a session started this process."""
    return _given is not None


def device_plan() -> DevicePlan | None:
    """The devices of a started rank: it sees its own GPU alone, as number 0."""
    if _given is None:
        return None
    count, kind = _given["place"]["local_world_size"], _given["kind"]
    return DevicePlan(kind, count, (0,) * count if kind != "cpu" else ())


def variable(place: dict[str, Any], key: bytes, kind: str, runs_again: bool) -> dict[str, str]:
    """The environment variable for a rank at ``place`` on a device of this kind; other users can't read it. ``runs_again``: it runs this script up
    to this very point."""
    at_entry = generators.digests() if runs_again else None
    given = {"place": place, "key": key.hex(), "pid": os.getpid(), "kind": kind, "generators": _imported, "at_entry": at_entry}
    return {VARIABLE: json.dumps(given)}
