"""Ranks that wait long say where every rank is, and end at once where they would wait for ever."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

SCRIPTS = Path(__file__).parent / "scripts"

LOOP = (SCRIPTS / "hang.py").read_text()


BACKWARD = "net(torch.ones(4, 3)).mean().backward()"


def hang(who: int, odd: str, after: str = "pass") -> Result:
    return fork_script(LOOP.replace("pass  # odd", odd).replace("# after", after), who)


def at(text: str) -> str:
    """The place of a line of the script."""
    return f"script.py:{next(number for number, line in enumerate(LOOP.splitlines(), 1) if text in line)}"


@pytest.mark.parametrize("who", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_slow_rank_is_named_with_its_line_and_never_ended(who: int) -> None:
    result = hang(who, "time.sleep(9)")
    assert result.ok() and result.stdout == "done\n"
    assert "torchbus: ranks have waited 2 s for others:" in result.stderr
    assert (
        f"rank {who} is elsewhere, after 2 backward calls, at {at('# odd')}: time.sleep(9)"
        in result.stderr
    )
    assert f"rank {1 - who} waits in backward 3, at {at(BACKWARD)}: {BACKWARD}" in result.stderr
    assert f"missing: rank {who}. It may only be slow" in result.stderr


@pytest.mark.slow
def test_one_rank_in_evaluation_is_said() -> None:
    result = hang(1, "net.eval(); time.sleep(9); net.train()")
    assert (
        result.ok()
        and "(in evaluation)" in result.stderr
        and "missing: rank 1. It seems to evaluate without the others" in result.stderr
    )


@pytest.mark.slow
def test_workers_that_do_not_deliver_are_said() -> None:
    on_both_ranks = "list(DataLoader(Stuck(s.rank == 0), num_workers=1, batch_size=2))"
    result = hang(0, f"pass\n        if step == 2: {on_both_ranks}")
    assert (
        "rank 0 is elsewhere" in result.stderr
        and "waits for the workers of its DataLoader, of which 1 of 1 live" in result.stderr
    )


@pytest.mark.parametrize("who", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_ranks_that_wait_in_different_places_end(who: int) -> None:
    result = hang(who, "s.barrier()")
    assert (
        result.ok(1)
        and "RanksDiverged: deadlock: the ranks wait for each other in different places: "
        in result.stderr
    )
    assert f"rank {who} waits in s.barrier, at {at('# odd')}: s.barrier()" in result.stderr
    assert f"rank {1 - who} waits in backward 3, at {at(BACKWARD)}" in result.stderr


@pytest.mark.parametrize("who", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_has_ended_is_not_waited_for(who: int) -> None:
    result = hang(who, "break", "")
    assert result.ok(1)
    assert (
        f"rank {who} ended its loop after 2 backward calls, while rank {1 - who} waits in backward 3 at {at(BACKWARD)}"
        in result.stderr
    )


SLOW_TO_HEAR = (
    "import torchbus_launch.broadcast_log as looking; looking.Looking.found = lambda guard: None"
)


@pytest.mark.parametrize("first", ["", f"; {SLOW_TO_HEAR}"])
def test_a_reduction_that_one_rank_leaves_out(first: str) -> None:
    """Also where the other rank's guard ends the connection before this rank's own guard has told
    it why.
    """
    result = hang(0, "pass", f"if s.rank == 0: pass{first}; s.reduce(1.0)")
    assert result.ok(1)
    assert (
        f"rank 1 ended its loop after 4 backward calls, while rank 0 waits in s.reduce at {at('# after')}"
        in result.stderr
    )


SLOW = """
import time, torch
import torch.distributed as dist
from torchbus import session

with session(strategy="ddp", devices=3, accelerator="cpu", launch="fork") as s:
    two = dist.new_group([0, 1])
    net = torch.nn.Linear(3, 1)
    net(torch.ones(4, 3)).mean().backward()
    if s.rank == 1:
        {slow}
    if s.rank < 2:
        dist.all_reduce(torch.ones(1), group=two)
print("done")
"""


def test_a_rank_that_waits_for_a_slow_one_beside_one_that_has_ended() -> None:
    """Slow is not diverged: the one that has ended has no part in what the others do."""
    result = fork_script(SLOW.format(slow="time.sleep(4)"))
    assert result.ok() and result.stdout == "done\n" and "RanksDiverged" not in result.stderr


@pytest.mark.slow
def test_a_rank_that_waits_for_one_that_has_ended_in_a_group_of_the_loops_own() -> None:
    result = fork_script(SLOW.replace("if s.rank < 2", "if s.rank < 1").format(slow="pass"))
    assert (
        result.ok(1)
        and "deadlock: the ranks wait for each other in different places" in result.stderr
    )


SEEDED = """
import time, torch
from torchbus import session

with session(strategy="ddp", devices={ranks}, accelerator="cpu", launch="fork", hang_timeout=2.0) as s:
    net = torch.nn.Linear(3, 1)
    for step in range(8):
        if step == {step} and s.rank == {who}:
            {odd}
        net(torch.ones(4, 3)).mean().backward()
"""
ODD = {  # what one rank does, and how it is named; 7 s are hang_timeout + 5 s
    "time.sleep(7)": "is elsewhere, after {step} backward calls",
    "net.eval(); time.sleep(7); net.train()": "is elsewhere, after {step} backward calls",
    "s.barrier()": "waits in s.barrier",
    "break": "ended its loop after {step} backward calls",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ten_seeded_hangs(seed: int) -> None:
    chance = random.Random(seed)
    ranks = chance.choice([2, 3])
    drawn = {
        "ranks": ranks,
        "who": chance.randrange(ranks),
        "step": chance.randrange(8),
        "odd": list(ODD)[seed % len(ODD)],
    }
    told = fork_script(SEEDED.format(**drawn)).stderr
    assert f"rank {drawn['who']} {ODD[drawn['odd']]}".format(**drawn) in told, (drawn, told)
    others = f"backward {drawn['step'] + 1}" if drawn["step"] else "a call of Linear"
    assert f"waits in {others}" in told, (drawn, told)
    assert drawn["odd"] == "break" or f"script.py:9: {drawn['odd']}" in told, (drawn, told)
