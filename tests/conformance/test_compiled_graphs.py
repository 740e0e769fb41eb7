"""A session changes nothing for torch's compiler: graphs, breaks and compilations again."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "compiled_graphs.py"


def test_a_loop_compiles_in_a_session_what_it_compiles_outside() -> None:
    found = fork_script(SCRIPT, timeout_s=115).json()
    assert [*found] == ["whole", "in_place", "a_part"]
    for name, counted in found.items():
        outside = counted.pop("outside")
        assert outside[0]["unique_graphs"] > 1 and bool(outside[1]) == (name != "a_part")
        assert {where: one for where, one in counted.items() if one != outside} == {}, name
