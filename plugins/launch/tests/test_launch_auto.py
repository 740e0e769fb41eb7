"""launch="auto": fork wherever that is safe, else the script again; what it drew before the block
is alike on all ranks.
"""

from __future__ import annotations

import sys

import pytest
import torch

from torchbus_testing.scripts import run, run_script

RANKS = """
import os, random, sys, threading
import numpy, torch
{imports}
from torchbus.bus.base import hookimpl
from torchbus import session

class Ranks:
    owns = ("strategy",)

    @hookimpl
    def launch(self, session):
        return session.start_ranks()
"""
BLOCK = """
with session(strategy=Ranks(), devices=2, accelerator="cpu"{options}) as s:
    print(s.explain().split("strategy")[0])
"""
NO_THREADS = {"OMP_NUM_THREADS": "1"}


def told(
    before: str = "", options: str = "", imports: str = "", env: dict[str, str] = NO_THREADS
) -> str:
    """The first section of explain(), as one line."""
    result = run_script(
        RANKS.format(imports=imports) + before + BLOCK.format(options=options), env=env
    )
    assert result.ok()
    return " ".join(result.stdout.split())


linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the script is run again")


@linux
def test_it_forks_where_nothing_stands_against_it() -> None:
    assert (
        "fork: only the block runs in each (launch='auto' chose fork: nothing in this process prevents it)"
        in told()
    )


@pytest.mark.share(3)
@linux
@pytest.mark.parametrize(
    ("before", "env", "reason"),
    [
        pytest.param(
            "",
            {"OMP_NUM_THREADS": "2"},
            "each rank has 2 CPU threads, and a forked one can use only one",
            marks=pytest.mark.skipif(torch.version.cuda is not None, reason="has own threads"),
        ),
        (
            "threading.Thread(target=threading.Event().wait, name='a writer', daemon=True).start()",
            NO_THREADS,
            "the thread 'a writer' would be missing in a forked rank",
        ),
        (
            "torch.cuda.is_initialized = lambda: True",
            NO_THREADS,
            "CUDA is initialised in this process",
        ),
    ],
)
def test_it_runs_the_script_again_where_a_fork_would_not_be_safe(before, env, reason) -> None:
    assert f"(launch='auto' did not fork: {reason})" in told(before, env=env)


@linux
def test_it_forks_where_there_is_no_script() -> None:
    source = RANKS.format(imports="") + BLOCK.format(options="").replace("\n\n", "\n")
    result = run([sys.executable, "-"], stdin=source, env={"OMP_NUM_THREADS": "2"})
    assert "launch='auto' chose fork: there is no script to run again" in " ".join(
        result.stdout.split()
    )


DRAWS = """
drawn = [random.random(), numpy.random.rand(), torch.rand(1).item()]
with session(strategy=Ranks(), devices=3, accelerator="cpu", launch="{launch}") as s:
    s.world.store.set(str(s.rank), repr(drawn))
    found = [s.world.store.get(str(rank)) for rank in range(3)]
print(len(set(found)), "different")
"""


@pytest.mark.share(2)
@pytest.mark.parametrize("launch", ["auto", "script"])
def test_what_an_unseeded_script_draws_before_the_block_is_alike(launch) -> None:
    """``rich`` draws one of Python's numbers when it is imported."""
    result = run_script(
        RANKS.format(imports="import rich.style") + DRAWS.format(launch=launch), env=NO_THREADS
    )
    assert result.ok() and result.stdout == "1 different\n"


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("draw", "name"),
    [
        ("random.random()", "Python's `random`"),
        pytest.param("numpy.random.rand()", "`numpy.random`", marks=pytest.mark.slow),
        ("torch.rand(1)", "torch's generator"),
    ],
)
def test_what_was_drawn_before_torchbus_was_imported_is_an_error(draw, name) -> None:
    result = run_script(RANKS.format(imports=draw) + DRAWS.format(launch="script"))
    assert result.ok(1)
    assert (
        f"RanksDiverged: {name} was drawn from before the block, and not identically on all ranks: the script runs again for each rank"
        in result.stderr
    )
    assert (
        "Seed it at the top of the script, import torchbus before anything is drawn, or use launch='fork'"
        in result.stderr
    )


@pytest.mark.slow
def test_a_generator_that_each_rank_seeds_otherwise_is_an_error() -> None:
    result = run_script(
        RANKS.format(imports="")
        + "numpy.random.seed(os.getpid())\n"
        + DRAWS.format(launch="script")
    )
    assert (
        result.ok(1)
        and "`numpy.random` was drawn from before the block, and not identically" in result.stderr
    )


@pytest.mark.slow
def test_what_a_seeded_script_draws_before_torchbus_is_imported_is_no_error() -> None:
    seeded = "numpy.random.seed(1); numpy.random.rand(); random.seed(2); random.random(); torch.manual_seed(3); torch.rand(1)"
    result = run_script(RANKS.format(imports=seeded) + DRAWS.format(launch="script"))
    assert result.ok() and result.stdout == "1 different\n"


def test_start_at_a_prompt_is_refused() -> None:
    source = RANKS.format(imports="").replace("\n\n", "\n") + "\n"
    result = run(
        [sys.executable, "-q", "-i"],
        stdin=source + 's = session(strategy=Ranks(), devices=2, accelerator="cpu").start()\n',
    )
    words = "UsageError: session(...).start() with several ranks in a notebook or at a prompt: what is typed afterwards reaches one rank only"
    assert words in result.stderr


@pytest.mark.slow
def test_a_rank_may_work_at_its_exit_and_is_waited_for() -> None:
    work = "import atexit, time\natexit.register(lambda: (time.sleep(15), open('done', 'a').write('x')))\n"
    end = "\nimport subprocess\natexit.register(lambda: print(open('done').read()))\n"
    result = run_script(
        RANKS.format(imports="") + work + BLOCK.format(options=", launch='script'") + end
    )
    assert (
        result.ok()
        and "waiting up to 30 s for rank 1, which still runs after the block" in result.stderr
    )
    assert result.stdout.endswith("x\n")


FILES = """
log = open("log.csv", "w")
log.write("header\\n")
print("before")
with session(strategy=Ranks(), devices=3, accelerator="cpu", launch="fork", print_all_ranks=True) as s:
    log.write(f"{s.rank}\\n")
    log.flush()
log.write("end\\n")
log.close()
print(open("log.csv").read().split())
"""


def test_what_was_open_or_printed_before_a_fork_is_written_once() -> None:
    """Standard output is a file here, so that the line waits in a buffer when the ranks
    are forked.
    """
    result = run_script(RANKS.format(imports="") + FILES, env={"PYTHONUNBUFFERED": None})
    assert result.ok() and result.stdout == "before\n['header', '0', 'end']\n"
