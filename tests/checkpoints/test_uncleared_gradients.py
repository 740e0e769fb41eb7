"""A checkpoint holds the gradients that the next backward adds to, whichever rank has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "uncleared_gradients.py"


@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.slow), "pipeline"])
def test_a_loop_that_never_clears_gradients_goes_on(tmp_path: Path, strategy: str) -> None:
    assert fork_script(SCRIPT, strategy, "ends", cwd=tmp_path, timeout_s=200).ok(7)
    result = fork_script(SCRIPT, strategy, "goes_on", cwd=tmp_path, timeout_s=200)
    assert result.ok()
    assert result.stdout == "True\n"
