"""Runs as the local logger writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .hostile_files import GOOD

Write = Callable[..., Path]


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def write_run(tmp_path: Path) -> Write:
    """``write_run(name, label=, ranks=, steps=, lr=, tail=)``: a run's folder in ``torchbus-logs``;
    ``tail`` ends each metrics file.
    """

    def write(
        name: str, label: str = "", ranks: int = 2, steps: int = 50, lr: float = 0.1, tail: str = ""
    ) -> Path:
        folder = tmp_path / "torchbus-logs" / name
        folder.mkdir(parents=True)
        config = {
            "name": label,
            "started": "2026-02-14T10:30:00+00:00",
            "command": ["train.py", "--lr", str(lr)],
            "strategy": "ddp",
            "world_size": ranks,
            "device": "cpu",
            "torchbus": "0.1.0",
            "torch": "2.13.0",
            "python": "3.12.4",
            "hostname": "node-1",
            "options": {"strategy": "ddp", "devices": ranks},
            "ended": "finished",
            "hyperparams": {"lr": lr, "model": {"depth": 12}},
        }
        (folder / "config.json").write_text(json.dumps(config))
        for rank in range(ranks):
            metrics = [
                {
                    "step": step,
                    "epoch": step // 25,
                    "time_s": step / 10,
                    "loss": math.exp(-step / 20),
                    "lr": lr,
                    "samples_per_s": 100.0 + rank,
                }
                for step in range(steps)
            ]
            system = [
                {"time_s": 2.0 * number, "gpu_util_pct": 50.0 + rank, "gpu_alone": 0.0}
                for number in range(4)
            ]
            (folder / f"metrics-rank{rank}.jsonl").write_text(lines(metrics) + tail)
            (folder / f"system-rank{rank}.jsonl").write_text(lines(system))
        return folder

    return write


@pytest.fixture
def logs(write_run: Write, tmp_path: Path) -> Path:
    write_run(GOOD, "baseline")
    return tmp_path / "torchbus-logs"
