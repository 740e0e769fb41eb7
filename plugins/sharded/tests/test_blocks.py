"""Blocks one after another in one process: what a divided model is afterwards, and what a block
that fails leaves behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"

AFTER = SCRIPTS / "blocks_after.py"
FAILS = SCRIPTS / "blocks_fail.py"
SPAWNED = SCRIPTS / "blocks_spawned.py"


@pytest.fixture(scope="module")
def after() -> dict[str, Any]:
    return dict(fork_script(AFTER, timeout_s=115).json())


def test_a_model_is_what_it_was(after):
    """It may be loaded, pickled and divided again; of hooks it has its own alone."""
    assert after["trained"] and after["again"]
    assert after["left"] == {"0._load_state_dict_post_hooks": 1} and after["called"] == [
        "loaded",
        "loaded",
    ]
    assert (
        after["loaded"] == ["<All keys matched successfully>"] * 2
        and after["pickled"] == "Parameter"
    )


def test_a_block_that_fails_does_not_keep_the_next_from_beginning():
    result = fork_script(FAILS, timeout_s=115)
    assert result.ok() and result.stdout.splitlines() == [
        "failed: True",
        "ddp done",
        "fsdp done",
        "failed: True",
        "fsdp done",
    ]


@pytest.mark.slow
def test_a_function_that_new_processes_call_divides_what_it_was_given():
    """Twice, while the caller has another model of the same form."""
    assert run_script(SPAWNED, timeout_s=115).ok().stdout == "True True Parameter\n"
