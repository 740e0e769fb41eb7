"""The loss, read without making the loop wait for the GPU."""

from __future__ import annotations

import torch


class Loss:
    """``show`` is called a few times per second. On a GPU it begins a copy, whose value is known at a later call."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._copy: torch.Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def show(self, loss: torch.Tensor | None) -> None:
        if loss is None or loss.numel() != 1 or loss.is_complex():
            return
        if loss.device.type == "cuda":
            self._show_later(loss.detach())
        else:
            self.value = float(loss.detach())

    def _show_later(self, loss: torch.Tensor) -> None:
        if torch.cuda.is_current_stream_capturing():
            return
        if self._copied is None or self._copy is None:
            self._copy = torch.empty(1, dtype=torch.float32, pin_memory=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        elif not self._copied.query():  # type: ignore[no-untyped-call]
            return
        else:
            self.value = float(self._copy)
        self._copy.copy_(loss.reshape(1).float(), non_blocking=True)
        self._copied.record()  # type: ignore[no-untyped-call]
