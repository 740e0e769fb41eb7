"""Whether this machine can run the first steps with real values."""

from __future__ import annotations

import os
from pathlib import Path

from torchbus_advise.observing.facts import Facts

FILLED = 0.7
FLOPS_PER_CORE_S = 1e10
LONGEST_STEP_S = 30.0
GIB = 2**30


def too_much(facts: Facts) -> str:
    """Why not, "" if it can."""
    needed, free = needed_bytes(facts), free_bytes()
    if needed > FILLED * free:
        return f"one process needs {needed / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free here"
    flops = max(one.flops for one in facts.passes)
    step_s = flops / (FLOPS_PER_CORE_S * (os.cpu_count() or 1))
    return f"a step would take about {step_s:.0f} s here" if step_s > LONGEST_STEP_S else ""


def needed_bytes(facts: Facts) -> int:
    """Of one process."""
    kept = sum(
        one.bytes + one.gradient_bytes + one.state_bytes + one.scalar_bytes
        for one in facts.parameters
    )
    return kept + facts.buffer_bytes + max(one.activation_bytes for one in facts.passes)


def free_bytes() -> int:
    """Of the host's memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if "MemAvailable" in line) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
