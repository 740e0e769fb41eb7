"""A finished run that continues with more epochs."""

from __future__ import annotations

import json
from pathlib import Path

from torchbus_testing.forking import fork_script

MORE_EPOCHS = Path(__file__).parent / "scripts" / "more_epochs.py"
OF_LOOPS: list[tuple[str, int, dict[str, int]]] = [
    ("block", 1, {}),
    ("function", 2, {}),
    ("method", 1, {}),
    ("function", 1, {"every_n_epochs": 3}),
    ("method", 2, {"every_n_steps": 4}),
]


def test_it_is_exact_wherever_the_loop_is(tmp_path: Path) -> None:
    """With counts, a best value, a schedule, and generators of the loop and of its loader."""
    result = fork_script(MORE_EPOCHS, json.dumps(OF_LOOPS), cwd=tmp_path)
    assert result.ok(), result
    *found, names, names_of_range = map(json.loads, result.stdout.splitlines())
    for case, (continued, again, steps) in zip(OF_LOOPS, found, strict=True):
        assert continued and again, case
        assert steps[-1] == "step-00000012", case
    assert names == names_of_range == [["generator", "optimizer"]] * 2
