"""What a rank that the session started finds in its environment.

One variable, ``TORCHBUS_LAUNCH``, a JSON object; never ``RANK`` or ``WORLD_SIZE``, at which many scripts start a
distributed mode of their own. It is read once, when torchbus is imported, and taken out of the environment, so that
no process which the script starts takes itself for a rank.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from torchbus.devices import DevicePlan
from torchbus.launch import orphan

VARIABLE = "TORCHBUS_LAUNCH"
START_DIRECTORY = os.getcwd()
_given: dict[str, Any] | None = None
_taken = False


def read() -> None:
    """Read the variable. torch's generator gets rank 0's first seed, so that an unseeded script initialises alike."""
    global _given
    text = os.environ.pop(VARIABLE, None)
    if text is not None:
        _given = json.loads(text)
        orphan.leave_with(parent_pid())
        torch.manual_seed(_given["seed"])  # type: ignore[index]


def place() -> dict[str, Any] | None:
    """The place of this rank; None in a process that the user started, or once it was taken."""
    return None if _given is None or _taken else dict(_given["place"])


def take() -> None:
    """The first session of this process has taken the place."""
    global _taken
    _taken = True


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


def variable(place: dict[str, Any], kind: str) -> dict[str, str]:
    """The environment variable for a rank at ``place`` on a device of this kind."""
    return {VARIABLE: json.dumps({"place": place, "pid": os.getpid(), "seed": torch.initial_seed(), "kind": kind})}
