"""Models that are made on the meta device: values as in one process, whatever the
number of ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"


VALUES = SCRIPTS / "meta_values.py"


def facts(script: Path, *args: object) -> dict[str, Any]:
    return dict(fork_script(script, *args, timeout_s=110).json())


@pytest.mark.parametrize("ranks", [[1, 2], pytest.param([3], marks=pytest.mark.slow)])
def test_the_values_are_those_of_one_process(ranks: list[int]):
    found = facts(VALUES, ranks)
    for count in ranks:
        assert found[f"first {count}"] == [True, True] and found[f"held {count}"]
        assert found[f"lists made before {count}"]
        assert len(found[f"trained {count}"]) == count and max(found[f"trained {count}"]) < 1e-9
    if 2 in ranks:
        assert found["kept 2"] == pytest.approx(
            [4 / 7, 3 / 5, 3 / 5, 3 / 5, 3 / 5, 1.0, 3 / 5, 3 / 5, 3 / 5, 3 / 5, 1.0, 3 / 5, 3 / 5]
        )


NESTED = SCRIPTS / "meta_nested.py"


@pytest.mark.slow
def test_a_module_that_initialises_its_parts_too():
    """And torch's attention, whose method has another name: at any number of ranks alike, without a
    word from torch.
    """
    found = run_script(NESTED, env={"PYTHONWARNINGS": "error"}).json()
    assert found["1"] == found["2"] and not any(number != number for number in found["1"])


WAYS = SCRIPTS / "meta_ways.py"


@pytest.fixture(scope="module")
def ways() -> dict[str, Any]:
    return facts(WAYS)


@pytest.mark.slow
def test_no_rank_has_more_than_one_module_whole(ways: dict[str, Any]):
    """By the function that is given: it gets each module that has something of its own,
    in order.
    """
    assert ways["at a time"] == [[[True] * 3, [1.0, 2.0, 3.0]]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("case", ["loaded", "left and loaded"])
def test_a_state_dict_may_be_loaded(ways: dict[str, Any], case: str):
    same, difference = ways[case]
    assert same and difference < 1e-9 and ways[f"{case} before"] is (case == "left and loaded")


@pytest.mark.slow
def test_an_optimizer_that_was_made_before_holds_the_parts(ways: dict[str, Any]):
    same, difference = ways["made before the block"]
    assert same and difference < 1e-9 and ways["after"] == [True] * len(ways["after"])
