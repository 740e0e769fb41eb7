"""The first failure is final: the job ends by it, whatever the script catches and handles itself."""

from __future__ import annotations

import signal
import textwrap

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

SCRIPT = """
import signal, threading, time
import torch
from torch.utils.data import DataLoader
from torchbus import session

def train(s, steps):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in enumerate(DataLoader(torch.randn(4 * steps, 3), batch_size=2, shuffle=True)):
        try:
            if (s.rank, step) == (1, 2):
                raise ValueError("a bad sample")
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        except Exception:
            continue

with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork", timeout_s=LIMIT_S) as s:
    try:
BODY
    finally:
        if s.rank == 0:
            print("finally of rank 0")
print("after the block")
"""


def run(body: str, limit_s: float = 1800) -> Result:
    body = textwrap.indent(textwrap.dedent(body), " " * 8)
    return fork_script(SCRIPT.replace("BODY", body).replace("LIMIT_S", str(limit_s)))


@pytest.mark.parametrize(
    "after", ["pass", "while True: time.sleep(0.1)"], ids=["the block ends", "it goes on"]
)
def test_a_divergence_that_the_script_catches(after: str) -> None:
    result = run(f"train(s, 10)\n{after}")
    assert result.ok(1).stdout == "finally of rank 0\n"
    assert result.stderr.count("RanksDiverged: the ranks made different numbers") == 1


OWN_HANDLER = """
    signal.signal(signal.SIGTERM, lambda number, frame: print("handled"))
    train(s, 2)
    if s.rank == 1:
        raise ValueError("the file is full")
    WAIT
"""


@pytest.mark.parametrize(
    "wait",
    [
        "    time.sleep(60)",
        """
    while True:
        try:
            time.sleep(60)
        except Exception:
            continue
""",
    ],
    ids=["is interrupted", "catches it"],
)
def test_a_rank_with_a_handler_of_its_own(wait: str) -> None:
    result = run(OWN_HANDLER.replace("    WAIT", wait))
    assert result.ok(1).stdout == "finally of rank 0\n"
    assert result.stderr.startswith("[rank 1] Traceback")
    assert result.stderr.rstrip().endswith("rank 1 failed first: ValueError: the file is full")


def test_a_rank_that_never_leaves_shows_the_failure_of_the_other() -> None:
    """A bare ``except`` lets nothing out of the loop."""
    wait = """
    while True:
        try:
            time.sleep(60)
        except:
            continue
"""
    result = run(OWN_HANDLER.replace("    WAIT", wait))
    assert result.status == 1 and not result.stdout
    assert result.stderr.startswith("[rank 1] Traceback")
    assert "is ended by force; it is at" in result.stderr


@pytest.mark.parametrize("who", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_never_comes_to_the_end(who: int) -> None:
    result = run(f"train(s, 2)\nif s.rank == {who}:\n    threading.Event().wait()", limit_s=4)
    assert result.ok(1).stdout == "finally of rank 0\n"
    assert f"rank {who} is elsewhere, after 2 backward calls, at script.py:" in result.stderr
    assert (
        f"RanksDiverged: rank {1 - who} has waited 4 s (timeout_s) in the end of the session"
        in result.stderr
    )


def test_a_keyboard_interrupt_that_nobody_has_sent() -> None:
    result = run(
        "train(s, 2)\nif s.rank == 1:\n    raise KeyboardInterrupt('of the script')\ns.barrier()"
    )
    assert result.ok(1).stdout == "finally of rank 0\n"
    assert "[rank 1] KeyboardInterrupt: of the script" in result.stderr
    assert "SIGINT" not in result.stderr


LATE = """
import os, signal
import torch
from torchbus import session
from torchbus.bus.base import hookimpl

class Late:
    @hookimpl
    def session_start(self, session):
        if session.is_main:
            session.on_close.callback(os.kill, os.getpid(), signal.NAME)

signal.signal(signal.NAME, signal.SIG_DFL)  # also under nohup

with session(Late(), strategy="ddp", devices=2, accelerator="cpu", launch="fork"):
    torch.nn.Linear(3, 1)(torch.ones(4, 3)).mean().backward()
try:
    print("after the block")
finally:
    print("finally")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_comes_while_the_block_ends(name: str) -> None:
    result = fork_script(LATE.replace("NAME", name))
    assert result.ok(128 + getattr(signal, name)).stdout == ""


WORKERS = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from torchbus import session

class Stuck(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info().id == 1:
            time.sleep(100)
        return torch.ones(3)

who, how = int(sys.argv[1]), sys.argv[2]
with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
    model = torch.nn.Linear(3, 1)
    for step, x in enumerate(DataLoader(Stuck(), batch_size=4, num_workers=2)):
        model(x).mean().backward()
        if s.rank == who:
            time.sleep(0.5)
            if how == "raise":
                raise ValueError("the file is full")
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("who", "how"), [(0, "kill"), (0, "raise"), pytest.param(1, "kill", marks=pytest.mark.slow)]
)
def test_workers_end_with_their_rank(who: int, how: str) -> None:
    """Although they read, and so do not see that it has gone."""
    result = fork_script(WORKERS, who, how)
    result.ok(-signal.SIGKILL if (who, how) == (0, "kill") else 1)


FSDP = """
import torch
from torchbus import session

with session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork", hang_timeout=2) as s:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        if s.rank == 1 and step == 10:
            model(torch.randn(4, 3)).mean().backward()
        optimizer.zero_grad()
        model(torch.randn(4, 3)).mean().backward()
        optimizer.step()
"""


def test_ranks_that_wait_in_different_collectives_of_one_backward() -> None:
    result = fork_script(FSDP)
    assert result.ok(1).stderr.count("RanksDiverged: deadlock: the ranks wait for each other") == 1


PIPELINE = """
import signal, time
import torch
from torchbus import session

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(1)
        return gradient

class Last(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return Slow.apply(y) if step == 3 else y

def too_late(number, frame):
    raise TimeoutError("this batch takes too long")

step = 0
with session(strategy="pipeline", devices=2, accelerator="cpu", launch="fork") as s:
    signal.signal(signal.SIGALRM, too_late)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), Last(3, 3), Last(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        try:
            optimizer.zero_grad()
            loss = model(torch.ones(8, 3)).square().mean()
            if s.rank == 0 and step == 3:
                signal.setitimer(signal.ITIMER_REAL, 0.5)
            loss.backward()
            optimizer.step()
        except HANDLED:
            continue
"""


@pytest.mark.parametrize(
    "handled", ["MemoryError", pytest.param("Exception", marks=pytest.mark.slow)]
)
def test_an_exception_of_a_signal_handler_in_the_backward_of_a_pipeline(handled: str) -> None:
    result = fork_script(PIPELINE.replace("HANDLED", handled))
    assert result.ok(1).stderr.rstrip().endswith("TimeoutError: this batch takes too long")


THREAD = """
import threading
import torch
from torchbus import session

def work():
    raise ValueError("the thread has failed")

with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
    torch.nn.Linear(3, 1)(torch.ones(4, 3)).mean().backward()
    if s.rank == 1:
        thread = threading.Thread(target=work, name="prefetcher")
        thread.start()
        thread.join()
    s.barrier()
print(threading.excepthook is threading.__excepthook__)
"""


def test_an_error_of_a_thread_of_another_rank() -> None:
    result = fork_script(THREAD)
    assert result.ok().stdout == "True\n"
    assert "[rank 1] Exception in thread prefetcher:\n[rank 1] Traceback" in result.stderr
    assert "[rank 1] ValueError: the thread has failed" in result.stderr


FEW_FILES = """
import os, resource
from torchbus import session

limit = len(os.listdir("/proc/self/fd")) + 10
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork"):
    pass
"""


def test_too_few_files() -> None:
    result = fork_script(FEW_FILES)
    assert "Too many open files. Raise the limit (`ulimit -n`)" in result.ok(1).stderr


OWN_WARNINGS = """
import gc, os, signal, warnings
import torch
from torchbus import session

warnings.simplefilter("default")
with session(strategy="ddp", devices=3, accelerator="cpu", launch="fork") as s:
    gc.collect()
    s.barrier()
    if s.rank == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    s.barrier()
"""


def test_the_cause_comes_first() -> None:
    stderr = fork_script(OWN_WARNINGS).ok(1).stderr
    assert stderr.startswith("torchbus: rank 2 failed first: the process was killed by SIGSEGV")
