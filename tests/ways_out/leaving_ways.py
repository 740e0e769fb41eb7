"""How a rank leaves, and what is seen of it."""

from __future__ import annotations

import signal
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "leaving.py"
WITHIN_S = 20.0
# How: what rank 0 raises where it is the one who leaves so, and where rank 1 is. None: the block
# ends.
DIVERGED = "RanksDiverged: rank {who} ended its loop after 3 backward calls, while rank {other} waits in backward 4"
UNEVEN = "RanksDiverged: rank {other} ended its loop after 6 backward calls, while rank {who} waits in backward 7"
WAYS = {
    "normal": (None, None),
    "break": (None, None),
    "return": (None, None),
    "exit 0": ("SystemExit: 0", "SystemExit: 0"),
    "raise": ("ValueError: boom", "RankFailed: rank 1 failed first: ValueError: boom"),
    "raise others sleep": ("ValueError: boom", "RankFailed: rank 1 failed first: ValueError: boom"),
    "raise others compute": (
        "ValueError: boom",
        "RankFailed: rank 1 failed first: ValueError: boom",
    ),
    "exit 3": ("SystemExit: 3", "RankFailed: rank 1 failed first: SystemExit: 3"),
    "exit boom": ("SystemExit: boom", "RankFailed: rank 1 failed first: SystemExit: boom"),
    "exit 0 alone": (DIVERGED, DIVERGED),
    "SIGINT": ("KeyboardInterrupt", "RankFailed: rank 1 failed first: it received SIGINT"),
    "SIGTERM": ("SystemExit: 143", "RankFailed: rank 1 failed first: it received SIGTERM"),
    "SIGHUP": ("SystemExit: 129", "RankFailed: rank 1 failed first: it received SIGHUP"),
    "SIGINT in backward others sleep": (
        "KeyboardInterrupt",
        "RankFailed: rank 1 failed first: it received SIGINT",
    ),
    "SIGTERM in backward others sleep": (
        "SystemExit: 143",
        "RankFailed: rank 1 failed first: it received SIGTERM",
    ),
    "SIGKILL": (None, "RankFailed: rank 1 failed first: the process was killed by SIGKILL"),
    "uneven": (UNEVEN, UNEVEN),
}
STATUS = {"ValueError": 1, "RankFailed": 1, "RanksDiverged": 1, "KeyboardInterrupt": -signal.SIGINT}


def raised(who: int, how: str) -> str | None:
    """What rank 0 raises, at least the beginning of it."""
    error = WAYS[how][min(who, 1)]
    return error and error.format(who=who, other=1 - who).replace(
        "rank 1 failed", f"rank {who} failed"
    )


def status(who: int, how: str) -> int:
    """The exit status of what the user started."""
    if (who, how) == (0, "SIGKILL"):
        return -signal.SIGKILL
    kind, _, detail = (raised(who, how) or "SystemExit: 0").partition(": ")
    return (int(detail) if detail.isdigit() else 1) if kind == "SystemExit" else STATUS[kind]


def check_finally(folder: Path, ranks: int, who: int, how: str) -> None:
    """``finally`` ran on every rank that could."""
    killed = {who} if how == "SIGKILL" else set()
    assert {path.name for path in folder.glob("finally*")} == {
        f"finally{rank}" for rank in {*range(ranks)} - killed
    }
