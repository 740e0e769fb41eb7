"""torchbus-optuna: Optuna studies on several ranks; rank 0 asks, and broadcasts the answers."""

from __future__ import annotations

from torchbus_optuna.one_study import OneStudy

__all__ = ["OneStudy"]
