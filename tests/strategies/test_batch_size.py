"""s.find_batch_size with several ranks, one of which has less memory."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "batch_size.py"


def test_all_ranks_agree_on_what_fits_everywhere() -> None:
    result = fork_script(SCRIPT, timeout_s=110)
    assert result.ok()
    agreed, synchronised, refused = result.stdout.splitlines()
    assert (agreed, synchronised) == ("True True 1", "True")
    assert refused.startswith("find_batch_size: the function calls optimizer.step()")
