"""Whether a loader is divided under fsdp: the models that are trained now decide, and no others
that are alive.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "data_divided.py"


GRADIENTS = "{'strategy': 'ddp_sharded', 'shard_gradients': True}"


@pytest.mark.parametrize(
    "options", ["{'strategy': 'fsdp'}", pytest.param(GRADIENTS, marks=pytest.mark.slow)]
)
def test_models_of_before_do_not_decide(options):
    found = fork_script(SCRIPT, options, timeout_s=115).json()
    for case, ranks in found.items():
        training, evaluation, again = zip(*ranks, strict=True)
        assert training == again == ([4, 4, 4], [4, 4, 4]), case
        assert evaluation == ([4, 4], [4, 4]), case
