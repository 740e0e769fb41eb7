"""Ranks are started, meet, and part: with a strategy that does nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torchbus import bootstrap, session
from torchbus.bus.base import hookimpl
from torchbus.errors import UsageError

from torchbus_testing.scripts import run, run_script, write_script

RANKS = """
import os, sys, time
import torch
from torchbus.bus.base import hookimpl
from torchbus import session

class Ranks:
    owns = ("strategy",)

    @hookimpl
    def launch(self, session):
        return session.start_ranks()
"""
TALK = """
print("before", flush=True)
with session(strategy=Ranks(), devices=2, accelerator="cpu", launch=LAUNCH) as s:
    print("inside", s.rank, s.local_rank, s.world_size, s.device, s.is_main, flush=True)
    print("to stderr", s.rank, file=sys.stderr)
    store = s.world.store
    store.add("seen", 1 + s.rank)
    while (seen := store.add("seen", 0)) < 3:
        time.sleep(0.01)
print("after", seen, flush=True)
"""
ALL = 'LAUNCH = "script"\n' + RANKS + TALK
FORKED = 'LAUNCH = "fork"\n' + RANKS + TALK
TOLD = "before\ninside 0 0 2 cpu True\nafter 3\n"
REMEDY = 'use launch="fork", which divides only the block, or put the code in a file and use `torchbus run FILE`'


class Ranks:
    owns = ("strategy",)

    @hookimpl
    def launch(self, session):
        return session.start_ranks()


@pytest.mark.parametrize(
    "source", [pytest.param(ALL, marks=pytest.mark.slow), FORKED], ids=["script", "fork"]
)
def test_rank_0_alone_speaks_and_goes_on(source):
    result = run_script(source)
    assert result.ok() and (result.stdout, result.stderr) == (TOLD, "to stderr 0\n")


@pytest.mark.parametrize("launch", [pytest.param("script", marks=pytest.mark.slow), "fork"])
def test_all_ranks_speak_if_asked_to(launch):
    source = (
        RANKS
        + f"""
with session(strategy=Ranks(), devices=2, accelerator="cpu", launch="{launch}", print_all_ranks=True) as s:
    print("out", end=" ")
    print("of two parts")
    print("error", file=sys.stderr)
print("after")
"""
    )
    result = run_script(source)
    assert result.ok()
    assert sorted(result.stdout.splitlines()) == [
        "[rank 0] out of two parts",
        "[rank 1] out of two parts",
        "after",
    ]
    assert sorted(result.stderr.splitlines()) == ["[rank 0] error", "[rank 1] error"]


def test_a_program_on_the_command_line_is_run_again():
    result = run([sys.executable, "-u", "-W", "error", "-c", ALL])
    assert result.ok() and result.stdout == TOLD


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="stdin"),
        pytest.param(["-"], id="stdin, named", marks=pytest.mark.slow),
        pytest.param(["-i"], id="prompt"),
    ],
)
def test_what_was_typed_can_not_be_run_again(words, tmp_path):
    program = ALL.replace("\n\n", "\n")
    source = f"try:\n    exec({program!r})\nexcept Exception as error:\n    print(type(error).__name__, error)\n\n"
    result = run([sys.executable, "-q", *words], cwd=tmp_path, stdin=source)
    assert result.ok()
    assert (
        f"UsageError this code was typed at a prompt or read from stdin, so there is no script to run again: {REMEDY}"
        in result.stdout
    )


def test_what_was_typed_can_be_forked():
    """And the compiler, which torch's first optimizer needs, is imported before the fork."""
    compiler = "import sys; print('torch._dynamo' in sys.modules)\n"
    result = run([sys.executable, "-"], stdin=compiler + FORKED + compiler)
    assert result.ok() and result.stdout == f"False\n{TOLD}True\n"


def test_a_test_runner_can_not_be_run_again(monkeypatch):
    monkeypatch.setattr(
        sys.modules["__main__"], "__spec__", SimpleNamespace(name="pytest.__main__")
    )
    with (
        pytest.raises(UsageError) as error,
        session(strategy=Ranks(), devices=2, accelerator="cpu", launch="script"),
    ):
        raise AssertionError("the block must not run")
    assert str(error.value).endswith(REMEDY)


def test_a_second_session_that_would_run_the_script_again_is_refused():
    source = ALL + TALK.replace("before", "second")
    result = run_script(source)
    assert result.ok(1) and result.stdout == TOLD + "second\n"
    assert (
        "UsageError: a second session that runs the script again: its ranks would reach the first session before it"
        in result.stderr
    )


def test_sessions_that_fork_follow_each_other():
    result = run_script(FORKED + TALK)
    assert result.ok() and result.stdout == TOLD + TOLD


LOOK = (
    RANKS
    + """
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "TORCHBUS_LAUNCH")
with open(os.environ["SEEN"], "a") as file:
    print(sys.argv[1:], os.getcwd(), [name for name in LAUNCHERS if name in os.environ], file=file)
os.chdir("outputs")
with session(strategy=Ranks(), devices=2, accelerator="cpu", launch="script") as s:
    store = s.world.store
    store.add("seen", 1)
    while store.add("seen", 0) < 2:
        time.sleep(0.01)
"""
)
HYDRA = ["+db.user=root", "a=[1,2]", "--flag=two words", "b.c=${oc.env:HOME}", "-x", "--", "*"]


@pytest.mark.share(2)
@pytest.mark.parametrize("by", ["path", "module"])
def test_each_rank_gets_the_same_words_and_directory_and_no_variable(tmp_path, by):
    """Scripts start a distributed mode of their own when they see RANK or WORLD_SIZE."""
    here, package = tmp_path / "here", tmp_path / "pkg" / "my folder"
    (here / "outputs").mkdir(parents=True)
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    write_script(package, LOOK, "train.py")
    write_script(package.parent, "from . import __name__ as package\n" + LOOK, "train.py")
    words = ["-m", "pkg.train"] if by == "module" else [os.path.relpath(package / "train.py", here)]
    result = run(
        [sys.executable, *words, *HYDRA],
        cwd=here,
        env={"SEEN": str(tmp_path / "seen"), "PYTHONPATH": with_path(tmp_path)},
    )
    assert result.ok()
    assert (tmp_path / "seen").read_text() == f"{HYDRA} {here} []\n" * 2


def with_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])


NO_TAKER = '{"taken_over_by": "torchbus_launch.launched_rank"}'


@pytest.mark.parametrize("text", ["", "word", "-1", "{}", "\x1b[31m", "[" * 9_999, NO_TAKER])
def test_a_place_that_no_session_has_written_is_refused(text, monkeypatch):
    monkeypatch.setenv("TORCHBUS_LAUNCH", text)
    with pytest.raises(UsageError) as error:
        bootstrap.read()
    shown = f"TORCHBUS_LAUNCH={text[:80]!r} is not from a session. Unset it"
    assert str(error.value) == shown and "TORCHBUS_LAUNCH" not in os.environ
