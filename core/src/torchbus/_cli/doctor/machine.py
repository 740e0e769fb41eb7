"""Checks Python, the platform, processors and shared memory."""

from __future__ import annotations

import os
import platform
import sys

import torch

from torchbus._cli.doctor.finding import Finding

SHARED_MEMORY = "/dev/shm"
SMALL_MIB = 256


def look() -> list[Finding]:
    """Describe the machine without its GPUs."""
    python = {"version": platform.python_version(), "executable": sys.executable}
    return [
        Finding("python", python),
        Finding("platform", {"system": platform.platform()}),
        _processors(),
        _shared_memory(),
    ]


def _processors() -> Finding:
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    given = os.environ.get("OMP_NUM_THREADS", str(usable)).split(",")[0].strip()
    facts = {
        "present": os.cpu_count(),
        "usable": usable,
        "threads of torch": torch.get_num_threads(),
    }
    if not given.isdigit() or not int(given):
        return Finding(
            "processors",
            facts,
            [
                f"OMP_NUM_THREADS={given!r} is not a number of threads: unset it, or set it to"
                f" {usable}"
            ],
        )
    hint = f"OMP_NUM_THREADS={given} is more than the usable processors: set it to at most {usable}"
    return Finding("processors", facts, hints=[hint] if int(given) > usable else [])


def _shared_memory() -> Finding:
    if not os.path.isdir(SHARED_MEMORY):
        return Finding(SHARED_MEMORY, {"size": None})
    disk = os.statvfs(SHARED_MEMORY)
    free_mib, total_mib = (
        blocks * disk.f_frsize // 2**20 for blocks in (disk.f_bavail, disk.f_blocks)
    )
    facts = {"free": f"{free_mib} MiB", "size": f"{total_mib} MiB"}
    if free_mib >= SMALL_MIB:
        return Finding(SHARED_MEMORY, facts)
    advice = "start the container with --shm-size=2g or --ipc=host, or use num_workers=0"
    return Finding(
        SHARED_MEMORY,
        facts,
        hints=[
            f"{SHARED_MEMORY} is small, and DataLoader workers pass batches through it: {advice}"
        ],
    )
