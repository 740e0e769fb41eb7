"""However a session is left, every rank leaves, torch is as it was, and the job's exit status is right."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
from torchbus.testing import Result, run, run_script, start

SCRIPT = Path(__file__).parent / "scripts" / "leaving.py"
WITHIN_S = 8.0
LOAD_S = 12.0  # how much longer a busy machine may take

# How: what rank 0 raises where it is the one who leaves so, and where rank 1 is. None: the block ends.
DIVERGED = "RanksDiverged: rank {who} ended its loop after 3 backward calls, while rank {other} waits in backward 4"
UNEVEN = "RanksDiverged: rank {other} ended its loop after 6 backward calls, while rank {who} waits in backward 7"
WAYS = {
    "normal": (None, None),
    "break": (None, None),
    "return": (None, None),
    "exit 0": ("SystemExit: 0", "SystemExit: 0"),
    "raise": ("ValueError: boom", "RankFailed: rank 1 failed first: ValueError: boom"),
    "raise others sleep": ("ValueError: boom", "RankFailed: rank 1 failed first: ValueError: boom"),
    "raise others compute": ("ValueError: boom", "RankFailed: rank 1 failed first: ValueError: boom"),
    "exit 3": ("SystemExit: 3", "RankFailed: rank 1 failed first: SystemExit: 3"),
    "exit boom": ("SystemExit: boom", "RankFailed: rank 1 failed first: SystemExit: boom"),
    "exit 0 alone": (DIVERGED, DIVERGED),
    "SIGINT": ("KeyboardInterrupt", "RankFailed: rank 1 failed first: it received SIGINT"),
    "SIGTERM": ("SystemExit: 143", "RankFailed: rank 1 failed first: it received SIGTERM"),
    "SIGHUP": ("SystemExit: 129", "RankFailed: rank 1 failed first: it received SIGHUP"),
    "SIGINT in backward others sleep": ("KeyboardInterrupt", "RankFailed: rank 1 failed first: it received SIGINT"),
    "SIGTERM in backward others sleep": ("SystemExit: 143", "RankFailed: rank 1 failed first: it received SIGTERM"),
    "SIGKILL": (None, "RankFailed: rank 1 failed first: the process was killed by SIGKILL"),
    "uneven": (UNEVEN, UNEVEN),
}
STATUS = {"ValueError": 1, "RankFailed": 1, "RanksDiverged": 1, "KeyboardInterrupt": -signal.SIGINT}
CASES = [(who, how) for how in WAYS for who in (0, 1)]
ROW = [case for case in CASES if case != (0, "SIGKILL")]


def raised(who: int, how: str) -> str | None:
    """What rank 0 raises, at least the beginning of it."""
    error = WAYS[how][min(who, 1)]
    return error and error.format(who=who, other=1 - who).replace("rank 1 failed", f"rank {who} failed")


def status(who: int, how: str) -> int:
    """The exit status of what the user started."""
    if (who, how) == (0, "SIGKILL"):
        return -signal.SIGKILL
    kind, _, detail = (raised(who, how) or "SystemExit: 0").partition(": ")
    return (int(detail) if detail.isdigit() else 1) if kind == "SystemExit" else STATUS[kind]


def check_finally(folder: Path, ranks: int, who: int, how: str) -> None:
    """``finally`` ran on every rank that could."""
    killed = {who} if how == "SIGKILL" else set()
    assert {path.name for path in folder.glob("finally*")} == {f"finally{rank}" for rank in {*range(ranks)} - killed}


def check_folder(folder: Path, ranks: int, who: int, how: str) -> None:
    """Rank 0 alone went on after the block if anybody, and torch is as it was."""
    check_finally(folder, ranks, who, how)
    goes_on = raised(who, how) is None and how != "SIGKILL"
    assert (folder / "after").exists() == goes_on
    if goes_on:
        assert (folder / "after").read_text() == "0\n"
    if (who, how) != (0, "SIGKILL"):
        assert (folder / "state").read_text() == ""


def check_words(result: Result, who: int, how: str) -> None:
    """The failure is told once: with its own traceback, first, and labelled if it is another rank's."""
    text, error = result.stderr, raised(who, how)
    for noise in ("Exception ignored", "Exception in thread", "terminate called", "Warning", "leaked"):
        assert noise not in text, text
    if error is None or error.startswith("SystemExit"):
        assert text == ("boom\n" if how == "exit boom" else ""), text
        return
    kind = error.partition(":")[0]
    assert text.count(error) == 1, text
    assert (f"torchbus.errors.{error}" if "Rank" in kind else error) in text.rstrip().splitlines()[-1], text
    own = "".join(line + "\n" for line in text.splitlines() if line.startswith("[rank "))
    if kind == "RankFailed" and how.startswith(("raise", "exit")):
        assert own.count(f"[rank {who}] Traceback (most recent call last):") == 1 and text.startswith(own), text
        assert own.endswith(f"[rank {who}] {error.partition('first: ')[2]}\n"), text
    else:
        assert own == "", text
    assert sum(line.startswith("Traceback") for line in text.splitlines()) == 1, text


def leave(folder: Path, launch: str, ranks: int, who: int, how: str) -> None:
    own = folder / "temporary"  # for what a job puts into the system's one
    own.mkdir()
    result = run([sys.executable, str(SCRIPT), str(folder), launch, str(ranks), str(who), how], env={"TMPDIR": str(own)})
    torchs = ("torchinductor_", "tmp") if how == "SIGKILL" else ("torchinductor_",)  # its cache; 2.4 has a folder while it runs
    assert [path.name for path in own.iterdir() if not path.name.startswith(torchs)] == []
    took_s = time.time() - (folder / "left").stat().st_mtime
    print(f"{launch}, {ranks} ranks, rank {who}: {how}: {took_s:.1f} s, exit status {result.status}")  # pytest -s shows the matrix
    assert result.ok(status(who, how))
    assert took_s < WITHIN_S + LOAD_S
    check_folder(folder, ranks, who, how)
    if (who, how) != (0, "SIGKILL"):
        check_words(result, who, how)


OFTEN = {
    ("script", 0, "raise"), ("script", 1, "raise others sleep"), ("script", 0, "SIGINT"), ("script", 1, "SIGKILL"), ("fork", 0, "SIGKILL"),
    ("fork", 1, "raise others compute"), ("fork", 0, "SIGTERM in backward others sleep"), ("fork", 0, "uneven"), ("fork", 1, "break"),
}  # fmt: skip
ALL_CASES = [(launch, who, how) for launch in ("script", "fork", "spawn") for who, how in CASES]


@pytest.mark.parametrize(
    ("launch", "who", "how"), [pytest.param(*case, marks=[] if case in OFTEN else pytest.mark.slow) for case in ALL_CASES]
)
def test_two_ranks(tmp_path, launch, who, how):
    leave(tmp_path, launch, 2, who, how)


@pytest.mark.parametrize("launch", [pytest.param("script", marks=pytest.mark.slow), "fork"])
@pytest.mark.parametrize(("who", "how"), [(2, "raise"), pytest.param(2, "SIGKILL", marks=pytest.mark.slow)])
def test_three_ranks(tmp_path, launch, who, how):
    leave(tmp_path, launch, 3, who, how)


IN_A_COMMAND = [(1, "raise others sleep"), (0, "raise"), (1, "exit 3"), (0, "SIGINT"), (1, "SIGTERM"), (1, "SIGKILL"), (0, "SIGKILL")]


@pytest.mark.slow
@pytest.mark.parametrize(("who", "how"), IN_A_COMMAND)
def test_under_torchbus_run(tmp_path, who, how):
    words = ["-m", "torchbus", "run", "--devices", "2", "--accelerator", "cpu", str(SCRIPT), str(tmp_path), "command", "2", str(who), how]
    result = run([sys.executable, *words])
    took_s = time.time() - (tmp_path / "left").stat().st_mtime
    assert result.ok(status(who, how))
    assert took_s < WITHIN_S + LOAD_S
    check_finally(tmp_path, 2, who, how)


UNDER_TORCHRUN = {
    (1, "raise others sleep"): "ValueError: boom", (0, "raise"): "ValueError: boom", (1, "SIGKILL"): "Signal 9 (SIGKILL)",
    (0, "exit 3"): "rank 0 failed first", (1, "uneven"): "ended its loop after",
}  # fmt: skip


@pytest.mark.parametrize(
    ("who", "how"), [pytest.param(*case, marks=pytest.mark.slow if number else []) for number, case in enumerate(UNDER_TORCHRUN)]
)
def test_under_torchrun(tmp_path, who, how):
    """torchrun's own words and status are its own; ours are that every rank leaves, and which one failed."""
    result = run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT), str(tmp_path), "script", "2", str(who), how])
    took_s = time.time() - (tmp_path / "left").stat().st_mtime
    assert result.status == 1 and not result.orphans
    assert took_s < WITHIN_S + LOAD_S
    left = {0, 1} - ({who} if how == "SIGKILL" else set())
    assert {path.name for path in tmp_path.glob("finally*")} == {f"finally{rank}" for rank in left}
    assert UNDER_TORCHRUN[who, how] in result.stderr


@pytest.fixture(scope="module")
def row(tmp_path_factory) -> Path:
    """Every way, one after the other in one process, forked each time."""
    folder = tmp_path_factory.mktemp("row")
    words = [word for who, how in ROW for word in (str(who), how)]
    result = run([sys.executable, str(SCRIPT), str(folder), "fork", "2", *words], timeout_s=280)
    assert result.ok()
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("who", "how"), ROW)
def test_in_a_row(row, who, how):
    folder = row / str(ROW.index((who, how)))
    check_folder(folder, 2, who, how)
    assert (folder / "error").read_text().startswith(raised(who, how) or "NoneType: None")


DESCRIPTORS = """
    import gc, os
    import torch
    from torchbus import session
    from torchbus.testing import listening_ports

    for _ in range(4):
        with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
            torch.nn.Linear(1, 1)(torch.ones(1, 1)).mean().backward()
            s.barrier()
        gc.collect()
        print(len(listening_ports()), len(os.listdir("/proc/self/fd")), flush=True)
"""


def test_no_port_and_no_descriptor_is_left():
    of_torch_2_4 = "ignore:Implicitly cleaning up:ResourceWarning"  # a temporary directory of its own
    result = run_script(DESCRIPTORS, env={"PYTHONWARNINGS": f"error::ResourceWarning,{of_torch_2_4}"})
    assert result.ok() and result.stderr == ""
    ports, descriptors = zip(*(map(int, line.split()) for line in result.stdout.splitlines()), strict=True)
    assert ports == (0, 0, 0, 0)
    assert len(set(descriptors)) == 1, descriptors


@pytest.mark.parametrize("launch", [pytest.param("script", marks=pytest.mark.slow), "fork"])
def test_ctrl_c_at_the_terminal(tmp_path, launch):
    """A terminal sends SIGINT to every process of the group."""
    with start([sys.executable, str(SCRIPT), str(tmp_path), launch, "2", "0", "endless"]) as script:
        deadline = time.monotonic() + 60
        while not (tmp_path / "left").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        script.send(signal.SIGINT, group=True)
        sent_s = time.monotonic()
        result = script.wait()
    assert result.ok(-signal.SIGINT)
    assert time.monotonic() - sent_s < WITHIN_S + LOAD_S
    assert {path.name for path in tmp_path.glob("finally*")} == {"finally0", "finally1"}
    assert (tmp_path / "state").read_text() == ""
    assert result.stderr.count("Traceback") == 1 and result.stderr.rstrip().endswith("KeyboardInterrupt")


STUCK = """
    import torch
    from torchbus import session

    with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
        torch.nn.Linear(1, 1)(torch.ones(1, 1)).mean().backward()
        if s.rank == 1:
            NATIVE
        raise ValueError("boom")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("native", "told"),
    [
        ("a = torch.ones(9000, 9000, dtype=torch.float64); a @ a", "rank 1 does not leave native code and is ended by force"),
        ("sum(range(10**12))", "rank 1 did not end by itself after the block and was killed"),
    ],
)
def test_a_rank_that_is_stuck_in_native_code_is_killed_and_named(native, told):
    """With Python's lock released, and held."""
    result = run_script(STUCK.replace("NATIVE", native))
    assert result.ok(1) and "ValueError: boom" in result.stderr
    assert result.seconds < 40
    assert f"torchbus: {told}" in result.stderr
