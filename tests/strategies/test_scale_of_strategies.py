"""Learning rates are multiplied by how many more samples a step really sees."""

from __future__ import annotations

import json
from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "scale_of_strategies.py"


def test_ranks_count_where_a_step_sees_more() -> None:
    assert json.loads(fork_script(SCRIPT).ok().stdout) == [
        [0.2, 2, 16],
        [0.1, 4, 8],
        [0.1, 4, 8],
        [0.1, 4, 8],
    ]
