"""A checkpoint in the middle of a window, on two ranks: one state for both, and nothing of the
window is lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "open_window.py"


@pytest.mark.share(2)
@pytest.mark.parametrize("in_loop", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "ddp_sharded"])
def test_an_open_window_is_saved_and_loaded_by_two_ranks(in_loop: bool, strategy: str) -> None:
    result = fork_script(SCRIPT, strategy, in_loop, timeout_s=110)
    assert result.ok()
    assert result.stdout == "True\n"


@pytest.mark.parametrize(("batch", "is_lost"), [(6, True), (4, False)])
def test_a_value_logged_in_an_open_window(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, batch: int, is_lost: bool
) -> None:
    with session(
        strategy=None, checkpoint=tmp_path, monitor="value", accumulate_grad_batches=4
    ) as s:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.ones(16, 2)
        for epoch in s.epochs(2):
            for number, x in enumerate(DataLoader(data, batch_size=2), 1):
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
                if number == batch:
                    s.log("value", float(epoch))
    text = "in an open window of accumulate_grad_batches=4. Log it after a multiple of"
    assert any(text in str(one.message) for one in recwarn) is is_lost
    assert not any("in the middle of a step" in str(one.message) for one in recwarn)
