"""Trains on two real ranks."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from typing import Any

from torchbus._bus import discovery
from torchbus._cli.doctor.environment import LAUNCHERS, MEETING_POINT, matching
from torchbus._cli.doctor.finding import Finding

NAME = "self-test"
TOLERANCE = 1e-9
COMMAND = [sys.executable, "-m", "torchbus._cli.doctor.two_ranks"]


def run(timeout_s: float) -> Finding:
    """Train on two gloo ranks on CPU, and compare the parameters with those of one process."""
    if "ddp" not in discovery.installed("strategy"):
        return Finding(
            NAME,
            {"result": "not run"},
            hints=["training on several devices needs a plugin: pip install torchbus-ddp"],
        )
    began = time.perf_counter()
    with subprocess.Popen(
        COMMAND,
        env=_environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return _failed(f"two ranks did not train within {timeout_s:g} s", _end(process))
    if process.returncode:
        return _failed(f"two ranks could not train (exit status {process.returncode})", errors)
    return _judged(json.loads(output), time.perf_counter() - began)


def _judged(told: dict[str, Any], wall_s: float) -> Finding:
    same = told["difference"] <= TOLERANCE
    facts = {
        "result": "passed" if same else "failed",
        "steps": told["steps"],
        "difference to one process": f"{told['difference']:.1g}",
        "ms/step": f"{told['train_s'] / told['steps'] * 1000:.2f}",
        "seconds in all": f"{wall_s:.1f}",
    }
    return Finding(
        NAME,
        facts,
        (
            []
            if same
            else [
                "two ranks learn different parameters than one process: please report it with this"
                " output"
            ]
        ),
    )


def _failed(what: str, errors: str) -> Finding:
    see_all = f"{shlex.join(COMMAND)} shows all of it"
    return Finding(
        NAME,
        {"result": "failed"},
        [f"{what}: {_last_error(errors) or 'no output'}. See the lines above; {see_all}"],
    )


def _last_error(errors: str) -> str:
    """Return the message under the last traceback."""
    lines = errors.rstrip().splitlines()
    indented = [index for index, line in enumerate(lines) if line.startswith("  ")]
    return " ".join(lines[indented[-1] + 1 :] if indented else lines[-1:])


def _end(process: subprocess.Popen[str]) -> str:
    """End rank 0, which then ends the other rank; return what they wrote to stderr."""
    process.terminate()
    try:
        return process.communicate(timeout=10)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1]


def _environ() -> dict[str, str]:
    """Return the environment without a launcher's variables: the two ranks are their own job."""
    launcher = matching("|".join([*LAUNCHERS.values(), MEETING_POINT, r"TORCHBUS_\w+"]))
    return {name: value for name, value in os.environ.items() if name not in launcher}
