"""``verify`` as a function, for tests of scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from torchbus.plugin import UsageError

from torchbus_verify import report
from torchbus_verify.report import Verdict


def verify(
    script: str | Path,
    *arguments: object,
    steps: int | str = 20,
    float64: bool = False,
    cwd: str | Path = ".",
    **options: object,
) -> Verdict:
    """Run a script without and with a session, and compare every step, as ``torchbus verify`` does.

    Both runs are separate processes, so the state of this process does not matter.

    Args:
        script: its path. ``arguments`` are those of the script.
        steps: real steps of each optimizer to compare, or "all".
        float64: run both in double precision.
        cwd: the script's working folder, which is not written to.
        options: of the session; ``strategy="ddp", devices=2, batch="global"`` where they are not
            given.

    Raises:
        UsageError: for invalid options.
    """
    flags = [f"--steps={steps}", *["--float64"] * float64]
    flags += [word for name, value in options.items() for word in ("-o", f"{name}={value!r}")]
    command = [
        sys.executable,
        "-m",
        "torchbus",
        "verify",
        "--json",
        *flags,
        "--",
        str(script),
        *map(str, arguments),
    ]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if not ended.stdout.startswith("{"):
        raise UsageError(
            (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
        )
    return report.loads(ended.stdout)
