"""What a job leaves, and ranks that are interrupted or stuck: no port, no descriptor, no process."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.processes import stretched
from torchbus_testing.scripts import run_script, start

SCRIPT = Path(__file__).parent / "scripts" / "leaving.py"
WITHIN_S = 20.0
DESCRIPTORS = """
    import gc, os
    import torch
    from torchbus import session
    from torchbus_testing.processes import listening_ports

    gc.freeze()  # a session looks through all objects; those of torch need not be among them

    def train(compiles=False, **options):
        with session(devices=2, accelerator="cpu", launch="fork", **options) as s:
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            run = torch.compile(model, backend="eager") if compiles else model
            run(torch.ones(2, 4)).mean().backward()
            optimizer.step()
            s.barrier()

    for _ in range(4):
        train(OPTIONS)
        gc.collect()
        print(len(listening_ports()), len(os.listdir("/proc/self/fd")), flush=True)
"""


@pytest.mark.parametrize(
    "options",
    [
        "strategy='ddp'",
        pytest.param("strategy='fsdp'", marks=pytest.mark.slow),
        "strategy='tp', plan={'0': 'colwise'}",
        pytest.param("strategy='pipeline'", marks=pytest.mark.slow),
        "strategy='ddp', compiles=True",
    ],
)
def test_no_port_and_no_descriptor_is_left(options):
    result = run_script(
        DESCRIPTORS.replace("OPTIONS", options), env={"PYTHONWARNINGS": "error::ResourceWarning"}
    )
    assert result.ok() and result.stderr == ""
    ports, descriptors = zip(
        *(map(int, line.split()) for line in result.stdout.splitlines()), strict=True
    )
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
    assert time.monotonic() - sent_s < stretched(WITHIN_S)
    assert {path.name for path in tmp_path.glob("finally*")} == {"finally0", "finally1"}
    assert (tmp_path / "state").read_text() == ""
    assert result.stderr.count("Traceback") == 1 and result.stderr.rstrip().endswith(
        "KeyboardInterrupt"
    )


IGNORED = """
    import os, pathlib, signal, time
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a job has it that a shell starts with &
    import torch
    from torchbus import session

    folder = pathlib.Path(FOLDER)
    with session(strategy="ddp", devices=2, accelerator="cpu", launch=LAUNCH) as s:
        model = torch.nn.Linear(1, 1)
        os.kill(os.getpid(), signal.SIGINT)
        try:
            for step in range(10**9):
                model(torch.ones(1, 1)).mean().backward()
                if step == 3:
                    (folder / f"goes_on{s.rank}").touch()
                    s.barrier()
                    if s.rank == WHO:
                        os.kill(os.getpid(), signal.SIGTERM)
        finally:
            (folder / f"finally{s.rank}").touch()
"""


@pytest.mark.parametrize(
    ("launch", "who", "status"),
    [("fork", 0, 143), ("fork", 1, 1), pytest.param("script", 0, 143, marks=pytest.mark.slow)],
)
def test_ranks_that_ignore_ctrl_c_end_by_sigterm(tmp_path, launch, who, status):
    given = {"FOLDER": repr(str(tmp_path)), "LAUNCH": repr(launch), "WHO": str(who)}
    source = IGNORED
    for name, value in given.items():
        source = source.replace(name, value)
    result = (fork_script if launch == "fork" else run_script)(source)
    assert result.ok(status)
    names = {f"{what}{rank}" for what in ("goes_on", "finally") for rank in (0, 1)}
    assert {path.name for path in tmp_path.iterdir()} == names


STUCK = """
    import torch
    from torchbus import session

    with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
        torch.nn.Linear(1, 1)(torch.ones(1, 1)).mean().backward()
        if s.rank == 1:
            NATIVE
        raise ValueError("boom")
"""


BY_ITSELF = "rank 1 does not leave native code and is ended by force"
BY_RANK_0 = "rank 1 did not exit after the block and was killed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("native", "enders"),
    [
        ("a = torch.ones(9000, 9000, dtype=torch.float64); a @ a", (BY_ITSELF, BY_RANK_0)),
        ("sum(range(10**12))", (BY_RANK_0,)),
    ],
    ids=["lock released", "lock held"],
)
def test_a_rank_that_is_stuck_in_native_code_is_killed_and_named(native, enders):
    """Its guard ends it, unless it has no time to do so before rank 0 does."""
    result = run_script(STUCK.replace("NATIVE", native))
    assert result.ok(1) and "ValueError: boom" in result.stderr
    assert result.seconds < stretched(40)
    assert any(f"torchbus: {ender}" in result.stderr for ender in enders)


ENDLESS = """
    import os, time
    import torch
    import torch.distributed as dist
    from torchbus import session

    def fail(group):  # the traceback holds it
        work = group.allreduce([torch.ones(1)])
        time.sleep(0.5)
        raise ValueError("boom")

    with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
        of_the_loop = dist.new_group()
        if s.rank == 1:
            if os.fork() == 0:  # it keeps the connections of rank 1
                time.sleep(40)
                os._exit(0)
            time.sleep(40)
        fail(of_the_loop)
"""


def test_a_collective_that_never_ends_does_not_keep_the_process():
    """gloo can lose the end of a send. Nothing ends this collective: its peer's connections stay."""
    result = run_script(ENDLESS)
    assert result.status == 1 and result.stderr.rstrip().endswith("ValueError: boom")
    (left,) = result.orphans
    assert "script" in left
