"""How many workers a loader should have, from what was measured."""

from __future__ import annotations

import math
import os
import sys
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchbus.plugin import Context, hookimpl

from torchbus_gpu.monitor import Monitor
from torchbus_gpu.users_code import Line, line_of, outwards

LONG_IN_LOADER = 0.2
BUSY_GPU_PCT = 90.0


class LoaderAdvice:
    """Once, when the loop is known to have waited for its training loader in more than a fifth of its time."""

    def __init__(self, session: Context, monitor: Monitor) -> None:
        self._session = session
        self._monitor = monitor
        self._told = False

    @hookimpl
    def batch_ready(self, loader: DataLoader[Any]) -> None:
        whereabouts = self._monitor.whereabouts
        if self._told or not whereabouts.is_sure or not torch.is_grad_enabled():
            return
        share = whereabouts.recent_share
        if share < LONG_IN_LOADER or self._monitor.latest.get("gpu_util_pct", 0.0) >= BUSY_GPU_PCT:
            return
        self._told = True
        line = line_of(outwards(sys._getframe())) or Line("torchbus-gpu", 1)
        text = f"the loop waits for this loader {100 * share:.0f} % of its time: {advice(loader, share, self._session)}"
        warnings.warn_explicit(text, UserWarning, line.file, line.number)


def advice(loader: DataLoader[Any], share: float, session: Context) -> str:
    cores = max(1, _cores() // session.world.local_world_size)
    wanted = workers_needed(loader.num_workers, share)
    words = [f"num_workers={min(wanted, cores)} instead of {loader.num_workers}" if min(wanted, cores) > loader.num_workers else ""]
    if wanted > cores:
        words.append(f"{wanted} workers would be needed and this rank has {cores} cores, so make a sample cheaper (decode or resize it beforehand)")
    if session.device.type == "cuda" and not loader.pin_memory:
        words.append("pin_memory=True, so that batches are copied while the GPU works")
    return "; ".join(word for word in words if word)


def workers_needed(workers: int, share: float) -> int:
    """Workers with which the loop need not wait, where it now waits for ``share`` of its time with so many.

    One batch takes the loader ``share`` of a step without workers, and ``workers`` whole steps with them (all are busy, else
    nobody would wait); the rest of the step is what it has to fit into.
    """
    work = share if workers == 0 else workers
    return max(workers + 1, math.ceil(round(work / max(1.0 - share, 0.01), 3)))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
