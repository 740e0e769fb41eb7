"""dp, ddp_sharded and fsdp on two GPUs, against one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchbus_testing.scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"

ON_GPUS = SCRIPTS / "on_two_gpus.py"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("strategy", ["dp", "ddp_sharded", "fsdp"])
def test_on_two_gpus(strategy):
    result = run_script(ON_GPUS, strategy, timeout_s=200)
    assert result.ok() and result.stdout == "True\n"
