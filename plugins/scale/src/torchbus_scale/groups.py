"""Rates of parameter groups, and what a step sees."""

from __future__ import annotations

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torchbus import objects
from torchbus.plugin import Context, UsageError


def refuse_without_rate(optimizer: Optimizer) -> None:
    """Raise UsageError for an optimizer that has no rate to scale, or finds its own."""
    if not all(
        isinstance(group.get("lr"), int | float | torch.Tensor) for group in optimizer.param_groups
    ):
        raise UsageError(
            f"scale_lr=... with {type(optimizer).__name__}: its groups have no number 'lr' that"
            " could be scaled; leave scale_lr out, or give it one"
        )


def scale_rates(optimizer: Optimizer, done: int, factor: float) -> None:
    """Scale the rates of the groups from number ``done`` on, and those of existing schedulers."""
    for group in optimizer.param_groups[done:]:
        for name in ("lr", "initial_lr"):
            if name in group:
                group[name] = group[name] * factor
    if not done:
        for scheduler in objects.alive(LRScheduler):
            if scheduler.optimizer is optimizer:
                scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]


def parts_of_step(session: Context) -> int:
    """How many of the script's batches the ranks take in one step.

    One, if they divide the script's own batch, or compute it together.
    """
    plugins = [plugin for _, plugin in session.bus.plugins()]
    whole = any(getattr(plugin, "divides_own_batch", False) for plugin in plugins)
    return 1 if whole else session.world.data.parts


def batch_size_of(loader: DataLoader[object]) -> int | None:
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None
