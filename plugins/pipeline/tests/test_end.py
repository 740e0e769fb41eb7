"""Stages begin different numbers of messages, so these do not show which rank is missing."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "waits_at_the_end.py"


def test_a_stage_may_wait_for_another_while_the_first_has_ended() -> None:
    result = fork_script(SCRIPT, timeout_s=100)
    assert result.ok().stdout == "together"
