"""The loss of a moment, and the mean loss of an epoch."""

from __future__ import annotations

import torch

from torchbus_device import accelerators

KEPT_AT_MOST = 64


class MeanLoss:
    """The mean over the backwards of an epoch. Only ``value`` waits for a GPU."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._kept: list[torch.Tensor] = []
        self._sums: list[torch.Tensor] = []

    def add(self, loss: torch.Tensor | None) -> None:
        """Add the loss of a backward. Every step calls it."""
        if loss is None or loss.numel() != 1 or loss.is_complex():
            return
        if loss.device.type == "cpu":
            self._sum += loss.item()
        elif accelerators.is_capturing(loss.device):
            return
        else:
            self._kept.append(loss.detach().reshape(()).float())
            if len(self._kept) == KEPT_AT_MOST:
                self._sum_kept()
        self._count += 1

    @property
    def value(self) -> float | None:
        self._sum_kept()
        self._sum += sum(float(one) for one in self._sums)
        self._sums.clear()
        return self._sum / self._count if self._count else None

    def _sum_kept(self) -> None:
        if self._kept:
            self._sums.append(torch.stack(self._kept).sum())
            self._kept.clear()


class Loss:
    """The latest loss. The listener calls ``show`` a few times per second.

    On a GPU, ``show`` begins a copy, whose value is known at a later call.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self._copy: torch.Tensor | None = None
        self._copied: accelerators.Event | None = None

    def show(self, loss: torch.Tensor | None) -> None:
        if loss is None or loss.numel() != 1 or loss.is_complex():
            return
        if loss.device.type != "cpu":
            self._show_later(loss.detach())
        else:
            self.value = float(loss.detach())

    def _show_later(self, loss: torch.Tensor) -> None:
        if accelerators.is_capturing(loss.device):
            return
        if self._copied is None or self._copy is None:
            self._copy = torch.empty(1, dtype=torch.float32, pin_memory=True)
            self._copied = accelerators.event(loss.device)
        elif not self._copied.query():
            return
        else:
            self.value = float(self._copy)
        self._copy.copy_(loss.reshape(1).float(), non_blocking=True)
        self._copied.record()
