"""Every way into a session gives N ranks the parameters that one process gets from the global
batch.
"""

from __future__ import annotations

import json
import os
import random
import re
import runpy
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result, run, start
from torchbus_testing.state import assert_torch_unchanged, torch_state

SCRIPT = Path(__file__).parent / "scripts" / "ways.py"
WAYS = runpy.run_path(str(SCRIPT), run_name="ways")
FORMS = ("with_block", "decorator", "start_and_close", "adopt")
BATCH_SIZE = 4


@pytest.fixture(scope="module")
def reference() -> Callable[[int], list[float]]:
    """The parameters that a plain loop reaches with the global batch of so many ranks."""
    return lambda ranks: WAYS["plain"](BATCH_SIZE * ranks)


# of torch: a client that meets the store of the block before as it closes tries again
TRIED_AGAIN = re.compile(r"\[W\d+ [\d:.]+ TCPStore\.cpp:\d+\] \[c10d\].*?\n\n", re.DOTALL)


def check(result: Result, ranks: int, expected: list[float], after: int = 1) -> None:
    """Rank 0 alone told the right parameters, and so many processes went on."""
    assert result.ok()
    told, *rest = result.stdout.splitlines()
    assert rest == ["after"] * after, result.stdout
    assert json.loads(told)["ranks"] == ranks
    assert_close(json.loads(told)["parameters"], expected)
    assert TRIED_AGAIN.sub("", result.stderr) == ""


def assert_close(ours: list[float], expected: list[float]) -> None:
    torch.testing.assert_close(
        torch.tensor(ours, dtype=torch.float64),
        torch.tensor(expected, dtype=torch.float64),
        rtol=0,
        atol=1e-12,
    )


def words(form: str, **options: object) -> list[str]:
    return [str(SCRIPT), form, str(BATCH_SIZE), json.dumps({"accelerator": "cpu", **options})]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strategy", [None, "auto", "ddp"])
def test_one_rank(form, strategy, reference):
    before = torch_state()
    assert_close(
        WAYS[form](BATCH_SIZE, strategy=strategy, devices=1, accelerator="cpu"), reference(1)
    )
    assert_torch_unchanged(before)


def test_one_rank_that_is_closed_at_exit(reference):
    check(run([sys.executable, *words("start_alone")]), 1, reference(1))


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "form",
    [
        "decorator",
        "start_alone",
        *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS if form != "decorator"),
    ],
)
def test_two_ranks(form, reference):
    check(run([sys.executable, *words(form, devices=2)]), 2, reference(2))


def test_two_and_three_ranks_by_fork(reference):
    """Each session of one process that forks is a new one; what the block computed
    stays in rank 0.
    """
    result = fork_script(SCRIPT, *words("each_form")[1:])
    *lines, last = result.stdout.splitlines()
    assert result.ok() and last == "after" and len(lines) == 2 * len(FORMS)
    for number, line in enumerate(lines):
        ranks = 2 + number % 2
        assert json.loads(line)["ranks"] == ranks
        assert_close(json.loads(line)["parameters"], reference(ranks))


@pytest.mark.slow
@pytest.mark.parametrize("launch", [pytest.param("script", marks=pytest.mark.slow), "fork"])
@pytest.mark.parametrize(
    "form", ["with_block", pytest.param("start_alone", marks=pytest.mark.slow)]
)
def test_three_ranks(form, launch, reference):
    check(run([sys.executable, *words(form, devices=3, launch=launch)]), 3, reference(3))


# Ranks that others started -----------------------------------------------------------------------


def free_port(low: int = 20000, high: int = 40000) -> int:
    while True:
        port = random.randrange(low, high)
        with socket.socket() as server:
            try:
                server.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def together(form: str, variables: list[Mapping[str, str]], **options: object) -> Result:
    """Start one process for each set of variables; what they wrote together."""
    with ExitStack() as stack:
        scripts = [
            stack.enter_context(start([sys.executable, *words(form, **options)], env=env))
            for env in variables
        ]
        results = [script.wait() for script in scripts]
    assert all(result.ok() for result in results)
    stdout = "".join(
        sorted(
            "".join(result.stdout for result in results).splitlines(keepends=True),
            key=lambda line: line[0] == "a",
        )
    )
    return Result(
        0,
        stdout,
        "".join(result.stderr for result in results),
        max(result.seconds for result in results),
        [],
    )


def test_torchrun(reference):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        *words("three_blocks"),
    ]
    check(run(command, env={"OMP_NUM_THREADS": "1"}), 2, reference(2), after=2)


@pytest.mark.slow
def test_variables_set_by_hand(reference):
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    check(
        together("start_and_close", [common | {"RANK": str(rank)} for rank in range(2)]),
        2,
        reference(2),
        after=2,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "launch"),
    [(2, "fork"), (1, "script"), (2, "script")],
)
def test_two_nodes_by_hand(devices, launch, reference):
    """The process that was started on each node is its local rank 0, and goes on."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    variables = [common | {"NODE_RANK": str(node)} for node in range(2)]
    result = together(
        "three_blocks" if launch == "fork" else "with_block",
        variables,
        devices=devices,
        num_nodes=2,
        launch=launch,
    )
    check(result, 2 * devices, reference(2 * devices), after=2)


@pytest.mark.slow
def test_slurm(reference):
    common = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NODEID": "0",
    }
    variables = [
        common | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)
    ]
    check(together("three_blocks", variables), 2, reference(2), after=2)


@pytest.mark.slow
def test_mpirun(reference):
    common = {
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "MASTER_PORT": str(free_port()),
    }
    variables = [
        common | {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
        for rank in range(2)
    ]
    check(together("decorator", variables), 2, reference(2), after=2)
