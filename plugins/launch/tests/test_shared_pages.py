"""What a script has made before the block exists once, and is found all the same."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "shared_pages.py"


def test_no_rank_gets_a_copy_of_objects_made_before_the_block() -> None:
    found = fork_script(SCRIPT).json()
    for made, copied, is_synchronised in found["ranks"]:
        assert made > 80 and copied < made / 3 and is_synchronised, found
    assert found["frozen"] < 1_000 and found["gone"], "the collector works again after the block"
