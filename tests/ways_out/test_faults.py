"""A sample of the faults that ``make.py faults`` tries, and its table."""

from __future__ import annotations

import pytest
from fault_matrix import FAULTS, LAUNCHES, PHASES, STRATEGIES, Cell, Judgement, cells, judge, table

SAMPLE = [
    Cell("raise", "save", 0, "fork", "ddp"),
    Cell("raise", "worker", 1, "fork", "pipeline"),
    Cell("exit 0", "middle", 1, "fork", "ddp_sharded"),
    Cell("exit 0", "after the loop", 0, "fork", "fsdp"),
    Cell("exit 3", "worker", 1, "fork", "ddp"),
    Cell("_exit 3", "before the first step", 1, "fork", "ddp_sharded"),
    Cell("SIGKILL", "middle", 0, "fork", "ddp"),
    Cell("SIGKILL", "after the loop", 1, "fork", "pipeline"),
    Cell("SIGTERM", "evaluation", 1, "fork", "fsdp"),
    Cell("stuck", "finally", 1, "fork", "ddp"),
    Cell("swallowed", "last step", 1, "fork", "ddp"),
    Cell("backward", "last step", 1, "fork", "fsdp"),
]


@pytest.mark.parametrize("cell", SAMPLE, ids=str)
def test_a_fault(cell: Cell) -> None:
    judged = judge(cell)
    assert not judged.wrong, judged.stderr


def test_the_matrix_is_whole() -> None:
    every = cells()
    assert len(every) == len({*every}) == len(FAULTS) * 2 * len(LAUNCHES) * len(STRATEGIES) > 600
    assert {*SAMPLE} < {*every}
    assert {cell.phase for cell in every} == {*PHASES}


def test_the_table_counts_what_has_passed() -> None:
    good, bad = (Judgement(SAMPLE[0], 1.5, wrong, "") for wrong in ([], ["status 0"]))
    assert "| raise | save | 2 | 1 | 1.5 | 1.5 |" in [*table([good, bad])]
