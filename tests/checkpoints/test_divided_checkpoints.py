"""Checkpoints of models and optimizers whose tensors are divided over ranks: interrupted and
resumed, they end as one process does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nodes import run_nodes

from torchbus_checkpoint.disk import folder
from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

SCRIPTS = Path(__file__).parent / "scripts"

HEAD = SCRIPTS / "divided_checkpoints_head.py"


def ran(script: Path, tmp_path: Path, *args: str) -> Result:
    return fork_script(script, *args, cwd=tmp_path, timeout_s=110)


def facts(script: Path, tmp_path: Path, *args: str) -> dict[str, Any]:
    return dict(ran(script, tmp_path, *args).json())


RESUMED = SCRIPTS / "divided_resumed.py"


@pytest.mark.slow
@pytest.mark.parametrize("sharded_save", [False, True])
@pytest.mark.parametrize(
    ("strategy", "before", "after"),
    [
        ("fsdp", 2, 2),
        ("fsdp", 2, 1),
        ("fsdp", 1, 2),
        ("fsdp", 2, 3),
        ("ddp_sharded", 2, 2),
        ("ddp", 2, 1),
    ],
)
def test_it_ends_as_one_process_does(
    tmp_path: Path, strategy: str, before: int, after: int, sharded_save: bool
) -> None:
    options = {"sharded_save": sharded_save, "async_save": after == 2}
    found = facts(RESUMED, tmp_path, json.dumps([strategy, before, after, options]))
    assert found["stopped"] == ["step-00000007"] and found["steps"] == 12 + 8 + 5
    assert found["apart"] < 1e-9


HYBRID = SCRIPTS / "divided_hybrid.py"


@pytest.mark.slow
def test_in_parts_of_a_node_that_other_nodes_have_too(tmp_path: Path) -> None:
    """Two nodes of two ranks, stopped and resumed."""
    assert all(result.ok() for result in run_nodes([2, 2], HYBRID, str(tmp_path), "8"))
    results = run_nodes([2, 2], HYBRID, str(tmp_path), "0")
    assert all(result.ok() for result in results)
    found = results[0].json()
    assert found["apart"] < 1e-9 and found["steps"] == 5


ALIKE = SCRIPTS / "divided_alike.py"


def test_in_parts_it_is_bit_for_bit_what_it_is_whole(tmp_path: Path) -> None:
    """At two ranks: what is saved, and how the resumed run ends; gradients that are still needed
    are saved, too.
    """
    found = facts(ALIKE, tmp_path)
    assert found["files"] == [
        "manifest.json",
        "part-0.safetensors",
        "part-1.safetensors",
        "rank-0.safetensors",
        "rank-1.safetensors",
        "training.safetensors",
    ]
    assert found["body"] == found["tail"] == [True, True]
    assert found["states"] == [4 * 3 + 2 + 2, True, True]
    assert found["whole"] < 1e-9 and found["ends alike"] and found["steps"] == 12 + 2 * (8 + 5)


GATHERS = SCRIPTS / "divided_gathers.py"


@pytest.mark.slow
def test_no_rank_gathers_anything_for_a_checkpoint_in_parts(tmp_path: Path) -> None:
    found = facts(GATHERS, tmp_path)
    assert found["in parts"] == [[0, 0, True]] * 2
    # so that gathering would be seen: parameters, two moments of each, gradients that are not cleared
    assert found["whole"] == [[16, 0, True]] * 2


KILLED = SCRIPTS / "divided_killed.py"
AFTERWARDS = SCRIPTS / "divided_afterwards.py"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["among the parts", "before it has its name"])
def test_killed_while_it_writes(tmp_path: Path, where: str) -> None:
    """The second checkpoint is not there; the run goes on from the first one."""
    assert ran(KILLED, tmp_path, where).status != 0
    there = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    names = there - {".lock"}  # it stays if rank 0 is killed
    assert (
        sorted(name.endswith(".partial") for name in names) == [False, True]
        and "step-00000003" in names
    )
    assert [found.name for found in folder.found(tmp_path / "checkpoints")] == ["step-00000003"]
    found = facts(AFTERWARDS, tmp_path)
    assert found["apart"] < 1e-9 and found["steps"] == 12 + 9
    assert found["left"] == ["step-00000006", "step-00000009", "step-00000012"]
