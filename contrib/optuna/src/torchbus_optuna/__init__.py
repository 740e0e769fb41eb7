"""torchbus-optuna: rank 0 decides for a study, and tells the other ranks."""

from __future__ import annotations

from torchbus_optuna.one_study import OneStudy

__all__ = ["OneStudy"]
