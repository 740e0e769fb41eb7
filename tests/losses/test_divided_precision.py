"""``precision="...-true"`` where parameters are divided: the model is converted first, as one
process converts it by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "divided_precision.py"


@pytest.mark.parametrize(
    "options",
    [
        "{'strategy': 'fsdp'}",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (
                "{'strategy': 'ddp_sharded', 'shard_gradients': True}",
                "{'strategy': 'ddp_sharded'}",
            )
        ),
    ],
)
def test_a_model_is_converted_before_it_is_divided(options: str) -> None:
    found = fork_script(SCRIPT, options, timeout_s=115).json()
    assert len(found) == 4 and all(converted for _, converted in found.values()), found
    assert all(
        apart < (1e-12 if name.startswith("64") else 0.02) for name, (apart, _) in found.items()
    ), found
