"""Models and loops of other forms than ``model(x)``, divided, against one process that knows
nothing of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

FORMS = SCRIPTS / "forms.py"
COMPILED = SCRIPTS / "forms_compiled.py"
HOOKED = SCRIPTS / "forms_hooked.py"


def facts(script: Path, ranks: int, options: str = "{}") -> dict[str, Any]:
    return dict(fork_script(script, ranks, options, timeout_s=115).json())


@pytest.mark.parametrize(
    ("ranks", "options"),
    [(2, "{}"), pytest.param(3, "{'reshard_after_forward': True}", marks=pytest.mark.slow)],
)
def test_models_without_forward(ranks, options):
    """What has no forward is divided in the parts that have one, and parameters that no such part
    has are whole.
    """
    found = facts(FORMS, ranks, options)
    assert len(found) == 5 and all(difference < 1e-12 for difference in found.values()), found


@pytest.mark.slow
def test_compiled_models():
    """In every order, nanoGPT's too; the state of the model inside is whole."""
    found = facts(COMPILED, 2)
    assert len(found) == 3 and all(difference < 1e-12 for difference in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_hooks_of_parameters(ranks):
    """They see, and may change, the gradient of the rank's samples."""
    found = facts(HOOKED, ranks)
    assert found.pop("calls of one that is removed") == 2, "one in each run"
    assert found.pop("after the block") == ["after the block"]
    for when in ("before", "after"):
        assert (
            "register_post_accumulate_grad_hook of a parameter under strategy='fsdp'"
            in found.pop(f"accumulated, {when}")
        )
    assert len(found) == 7 and all(difference < 1e-12 for difference in found.values()), found
