"""torchbus-optuna: hyperparameter studies; rank 0 asks Optuna, and broadcasts to the others."""

from __future__ import annotations

from torchbus_optuna.one_study import OneStudy

__all__ = ["OneStudy"]
