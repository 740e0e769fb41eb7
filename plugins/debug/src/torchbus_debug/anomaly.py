"""The plugin for torch's own checks: anomalies in backward, and nondeterministic algorithms."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

import torch
from torchbus.plugin import Context, UsageError, expect, hookimpl

WORKSPACE, ENOUGH = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""What cuBLAS needs to be deterministic: https://docs.nvidia.com/cuda/cublas/#results-reproducibility
"""


class Anomaly:
    """Turns torch's own checks on inside the session's block, and restores them afterwards.

    Args:
        detect_anomaly: a backward that gives NaN is an error, with the traceback of its forward.
            Slow: for debugging.
        deterministic: True: only deterministic algorithms, and an error where torch has none.
            "warn": a warning there.

    Raises:
        UsageError: an option has another type or value.
    """

    owns = ("checks of torch",)
    tried_with = ({"detect_anomaly": True, "deterministic": True},)

    def __init__(
        self, *, detect_anomaly: bool = False, deterministic: bool | Literal["warn"] = False
    ) -> None:
        expect("detect_anomaly", detect_anomaly, bool, "True or False")
        if deterministic not in (True, False, "warn"):
            raise UsageError(f"deterministic={deterministic!r}: use True, False or 'warn'")
        self._detects = detect_anomaly
        self._deterministic = deterministic

    @hookimpl
    def session_start(self, session: Context) -> None:
        if self._detects:
            session.on_close.enter_context(torch.autograd.set_detect_anomaly(True))
        if self._deterministic:
            session.on_close.callback(be_deterministic(warn_only=self._deterministic == "warn"))

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        lines = ["a backward that gives NaN is an error"] if self._detects else []
        if self._deterministic:
            instead = "a warning" if self._deterministic == "warn" else "an error"
            lines.append(f"an algorithm that is not deterministic is {instead}")
        return {"checks": lines} if lines else {}


def be_deterministic(*, warn_only: bool) -> Callable[[], None]:
    """Let torch use deterministic algorithms only. Return the function that undoes it."""
    used, warned = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    benchmark, workspace = torch.backends.cudnn.benchmark, os.environ.get(WORKSPACE)
    os.environ.setdefault(WORKSPACE, ENOUGH)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.benchmark = False

    def undo() -> None:
        torch.use_deterministic_algorithms(used, warn_only=warned)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop(WORKSPACE, None)

    return undo
