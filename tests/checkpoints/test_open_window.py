"""A checkpoint in the middle of a window, on two ranks: one state for both, and nothing of the
window is lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "open_window.py"


@pytest.mark.share(2)
@pytest.mark.parametrize("in_loop", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "ddp_sharded"])
def test_an_open_window_is_saved_and_loaded_by_two_ranks(in_loop: bool, strategy: str) -> None:
    result = fork_script(SCRIPT, strategy, in_loop, timeout_s=110)
    assert result.ok()
    assert result.stdout == "True\n"
