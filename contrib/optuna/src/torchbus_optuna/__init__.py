"""torchbus-optuna: a study asks rank 0 and tells the others."""

from __future__ import annotations

from torchbus_optuna.one_study import OneStudy

__all__ = ["OneStudy"]
__version__ = "0.1.0"
