"""fsdp on CPU: while a unit computes the next one is gathered, whatever comes instead of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "ahead.py"

WAYS = [
    "the order that was learnt",
    "evaluations that stop early",
    "a block by itself",
    "forwards for training, without backward",
    "a forward that fails",
    "another depth each time",
    "the other way round",
    "twice",
]


@pytest.fixture(scope="module")
def found():
    return fork_script(SCRIPT).json()


@pytest.mark.parametrize("way", WAYS)
def test_as_in_one_process(found, way):
    alone, *ranks = found[way]
    assert ranks[0] == ranks[1] and len(alone) == len(ranks[0])
    assert max(abs(ours - other) for ours, other in zip(ranks[0], alone, strict=True)) < 1e-9


def test_the_next_unit_is_on_its_way(found):
    assert found["early"] == [True] * 5
