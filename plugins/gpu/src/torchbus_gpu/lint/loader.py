"""Advise how many workers a loader needs, from measurements."""

from __future__ import annotations

import math
import os
import warnings

import torch
from torch.utils.data import DataLoader
from torchbus.plugin import Context, hookimpl

from torchbus_gpu._compat import current_frame
from torchbus_gpu.monitor import Monitor
from torchbus_gpu.users_code import Line, line_of, outwards

LONG_IN_LOADER = 0.2
BUSY_GPU_PCT = 90.0


class LoaderAdvice:
    """Warns once, if the loop waits for its training loader more than a fifth of its time."""

    def __init__(self, session: Context, monitor: Monitor) -> None:
        self._session = session
        self._monitor = monitor
        self._warned = False

    @hookimpl
    def batch_ready(self, loader: DataLoader[object]) -> None:
        whereabouts = self._monitor.whereabouts
        if self._warned or not whereabouts.is_sure or not torch.is_grad_enabled():
            return
        share = whereabouts.recent_share
        if share < LONG_IN_LOADER or self._monitor.latest.get("gpu_util_pct", 0.0) >= BUSY_GPU_PCT:
            return
        self._warned = True
        line = line_of(outwards(current_frame())) or Line("torchbus-gpu", 1)
        text = (
            f"the loop waits for this loader {100 * share:.0f} % of its time:"
            f" {advice(loader, share, self._session)}"
        )
        warnings.warn_explicit(text, UserWarning, line.file, line.number)


def advice(loader: DataLoader[object], share: float, session: Context) -> str:
    cores = max(1, _cores() // session.world.local_world_size)
    wanted = workers_needed(loader.num_workers, share)
    changes = [
        (
            f"num_workers={min(wanted, cores)} instead of {loader.num_workers}"
            if min(wanted, cores) > loader.num_workers
            else ""
        )
    ]
    if wanted > cores:
        changes.append(
            f"{wanted} workers would be needed and this rank has {cores} cores, so make a sample"
            " cheaper (decode or resize it beforehand)"
        )
    if session.device.type != "cpu" and not loader.pin_memory:
        changes.append("pin_memory=True, so that batches are copied while the GPU works")
    return "; ".join(word for word in changes if word)


def workers_needed(workers: int, share: float) -> int:
    """Return how many workers the loop needs so that it does not wait.

    With so many ``workers``, it now waits for ``share`` of its time. Without workers, a batch takes
    ``share`` of a step. With workers, all of them are busy, so a batch takes ``workers`` steps. The
    workers have to make a batch in the rest of a step.
    """
    work = share if workers == 0 else workers
    return max(workers + 1, math.ceil(round(work / max(1.0 - share, 0.01), 3)))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
