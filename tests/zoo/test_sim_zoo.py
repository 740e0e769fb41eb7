"""Loops of the zoo, which say nothing of devices, on the simulated accelerator with two ranks."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import run_plain, run_session
from judgement import judge
from zoo import ZOO
from zoo_strategies import STRATEGIES, under

import torchbus_simulator as accelerator

REASON = accelerator.missing()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(400),
    pytest.mark.slow,
]
SHARE = ("eval_in_epoch", "one_cycle", "plateau", "batch_branch")
"""Loops that make no tensor by hand outside of a data set and a model."""
NOT_BUILT = {
    "horovod": pytest.mark.skipif(
        find_spec("horovod") is None,
        reason="Horovod is not built: see contrib/horovod/README.md",
    )
}


@pytest.mark.parametrize(
    "strategy", ["ddp", *(pytest.param(one, marks=NOT_BUILT.get(one, ())) for one in STRATEGIES)]
)
@pytest.mark.parametrize("name", SHARE)
def test_loop(name: str, strategy: str, tmp_path: Path) -> None:
    row = next(loop for loop in ZOO if loop.name == name)
    row = row if strategy == "ddp" else under(strategy, row)
    row = replace(row, tolerance=max(row.tolerance, 1e-5))  # sums in another order
    reference = run_plain(row, tmp_path / "plain", batches=row.of_one_process(2))
    assert reference.status == 0, reference.stderr
    run = run_session(row, tmp_path / "session", 2, launch="fork", sim=True)
    problems = judge(row, run, reference, 2)
    assert not problems, "\n".join(problems[:12])
