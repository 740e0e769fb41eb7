"""The options of a synchronised backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torchbus.plugin import UsageError, expect

from torchbus_strategy.checks.divergence import HeaderWatch
from torchbus_strategy.loss.terms import check_mode
from torchbus_strategy.parameters.sync_buffers import How, check_how

LOSS_REDUCTIONS = ("auto", "mean", "sum")


@dataclass(frozen=True)
class SyncOptions:
    """A strategy's options, checked, and its ``name``, with which its plugins are registered."""

    name: str
    loss_reduction: str = "auto"
    loss_weight: str = "auto"
    sync_loss: bool = True
    sync_batchnorm: bool = False
    sync_buffers: How | Mapping[str, How] = "rank0"

    def __post_init__(self) -> None:
        expect("sync_loss", self.sync_loss, bool, "True or False")
        expect("sync_batchnorm", self.sync_batchnorm, bool, "True or False")
        if self.loss_reduction not in LOSS_REDUCTIONS:
            raise UsageError(
                f"loss_reduction={self.loss_reduction!r} is unknown: use 'auto', 'mean' or 'sum'"
            )
        check_how(self.sync_buffers)
        check_mode(self.loss_weight)

    def check_device(self, device: torch.device) -> None:
        """Raise UsageError if this rank's device can't do what the options ask for."""
        if self.sync_batchnorm and device.type == "cpu":
            raise UsageError(
                "sync_batchnorm=True needs GPUs: torch's SyncBatchNorm does not run on CPU"
            )


@dataclass(frozen=True)
class Division:
    """How the ranks divide a batch.

    Attributes:
        watch: Looks at what the ranks computed.
        stream: The number of this rank's random stream. If it is None, all ranks continue to draw
            the same numbers.
        weight: Multiplies what a gradient counts.
        has_parts: Whether ranks compute losses of different samples, so that the mean over ranks
            depends on ``loss_reduction``.
        runs_uncounted: Whether the reduction also runs the backward of a rank without samples, and
            contributes zeros for it. An engine whose collectives run in the graph needs all ranks.
            By default such a backward runs earlier, and its gradients are dropped.
    """

    watch: HeaderWatch
    stream: int | None
    weight: float = 1.0
    has_parts: bool = True
    runs_uncounted: bool = False
