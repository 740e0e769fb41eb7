"""The session that a script begins itself: its options are found in a first run.

In the runs that are compared, the command has begun a session with these options before the script
starts, and the script gets that one. The first of them is one rank under the same options.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn, cast

from torchbus import Session, current

from torchbus_redaction.texts import hides

SESSION = "session.txt"
"""The file in a run's folder with the plugins and options of the script's session."""
OF_LAUNCH = {"devices", "accelerator", "num_nodes", "launch", "print_all_ranks", "batch", "resume"}
"""Options that the command sets, or that have no meaning for its runs."""
OF_OUTPUT = ("checkpoint", "logger")
LIKE_DDP = (None, "auto", "ddp_spawn", "ddp_notebook")


class ScriptBeginsSession(BaseException):
    """Ends the first run where the script begins its session."""


def use_active(plugins: tuple[object, ...], options: dict[str, Any]) -> Session:
    """Return the session that the command has begun."""
    return cast(Session, current())


def stop_at_session(folder: Path, plugins: tuple[object, ...], options: dict[str, Any]) -> NoReturn:
    """Record the options of the script's session, without secrets, and end this run."""
    shown = {name: value for name, value in options.items() if not hides(name, value)}
    (folder / SESSION).write_text(repr((plugins, shown)), encoding="utf-8")
    raise ScriptBeginsSession


def merged(of_command: dict[str, Any], given: frozenset[str], script: dict[str, Any]) -> Any:
    """Return the options of the script's session as the command runs it.

    Those that the user gave to the command come first. Nothing is sent to trackers, and no
    checkpoint is written.
    """
    ours = {name: value for name, value in script.items() if name not in OF_LAUNCH | given}
    ours |= {name: None for name in OF_OUTPUT if name in ours}
    if ours.get("strategy") in LIKE_DDP:
        ours.pop("strategy", None)
    options = {**of_command, **ours}
    if options["strategy"] == "dp":
        options.pop("batch", None)
    return options
