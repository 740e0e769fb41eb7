"""``model_summary`` counts whole parameters, also where a rank keeps a part of each, or none."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "summary_of_strategies.py"
TP = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
STRATEGIES = [
    {"strategy": "deepspeed_stage_3"},
    {"strategy": "fsdp"},
    {"strategy": "tp", "tp": 2, "plan": TP},
]


@cache
def told(options: str) -> dict[str, list[str]]:
    """The cells of each line, by its module and number."""
    out = fork_script(SCRIPT, options, timeout_s=100).stdout
    rows = [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()
    ]
    return {f"{number} {row[0]}": row[1:] for number, row in enumerate(rows) if len(row) > 5}


@pytest.mark.parametrize("options", STRATEGIES, ids=lambda options: options["strategy"])
def test_shapes_parameters_and_operations_are_those_of_one_process(options):
    """Each rank has batches of the same size as the one process."""
    if options["strategy"].startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    found = told(json.dumps({**options, "devices": 2, "launch": "fork"}))
    assert found == told(json.dumps({"strategy": None}))
    assert found["1 model"][3:] == ["1,140", "1,140", "16,896"]
