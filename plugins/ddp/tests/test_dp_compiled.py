"""dp and torch.compile: the rows are divided around the compiled model."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "dp_compiled.py"


def test_compiled_models_are_those_of_one_process():
    """The rows of one that is compiled in place are computed by every rank."""
    found = fork_script(SCRIPT, timeout_s=115).json()
    assert all(difference < 1e-12 for difference, _ in found.values()), found
    assert {order: rows for order, (_, rows) in found.items()} == {
        "the model first": 4,
        "the optimizer first": 4,
        "in place": 8,
    }
