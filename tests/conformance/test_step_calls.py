"""A steady step runs no more Python functions of torchbus than it did: counted, not timed."""

from __future__ import annotations

import json
from pathlib import Path

from torchbus_testing.scripts import run_script

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "step_calls.py"
AT_MOST = {  # calls for each batch; a comprehension is one in Python 3.10 and 3.11
    "ddp, a DataLoader": 135,
    "ddp, windows of 4 batches": 205,
    "one rank, windows of 4 batches": 88,
}


def test_a_steady_step_calls_no_more_functions_than_it_did(tmp_path):
    found = tmp_path / "found.json"
    result = run_script(SCRIPT, "--steps", 8, "--json", found, "--loops", *AT_MOST, timeout_s=300)
    assert result.ok()
    calls = {
        name: kinds["calls"] + kinds["others"]
        for name, kinds in json.loads(found.read_text()).items()
    }
    assert {name: calls[name] for name in AT_MOST if calls[name] > AT_MOST[name]} == {}
