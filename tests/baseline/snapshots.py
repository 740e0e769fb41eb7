"""Write down what people and plugins see of torchbus::

    .venv/bin/python tests/baseline/snapshots.py     # after a change that is meant to show

``listeners.txt``: who listens to each event, in order, in some usual sessions on two ranks.
``help.txt``: what each command says of itself. Options, verbs and events have pages of their own
under ``docs/``, which tests compare in the same way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMANDS = (
    "advise", "checkpoint", "completion", "doctor", "explain", "new-plugin", "options", "plugins",
    "report", "run", "runs", "stubs", "verify",
)  # fmt: skip
SESSIONS: dict[str, dict[str, object]] = {
    "one process": {},
    "ddp": {"strategy": "ddp"},
    "ddp, logged, saved, accumulated": {
        "strategy": "ddp",
        "logger": "local",
        "checkpoint": "checkpoints",
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 1.0,
        "precision": "bf16-mixed",
        "plugins": ["progress", "throughput"],
    },
    "fsdp": {"strategy": "fsdp"},
    "ddp_sharded": {"strategy": "ddp_sharded"},
}


def listeners() -> str:
    """A section a session, a line an event."""
    return "".join(
        f"# {name}\n" + "".join(f"{event}: {' '.join(there)}\n" for event, there in events.items())
        for name, events in json.loads(_printed("one_step.py", json.dumps(SESSIONS))).items()
    )


def helps() -> str:
    """All commands' ``--help``, as on a terminal of 100 columns."""
    return _printed("helps.py", *COMMANDS)


def _printed(script: str, *arguments: str) -> str:
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "PYTHON_COLORS": "0"}
    command = [sys.executable, HERE / script, *arguments]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    return done.stdout


if __name__ == "__main__":
    (HERE / "listeners.txt").write_text(listeners())
    (HERE / "help.txt").write_text(helps())
