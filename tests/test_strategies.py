"""dp, ddp_sharded and fsdp on two GPUs, against one."""

from __future__ import annotations

import pytest
import torch
from torchbus.testing import run_script, write_script

ON_GPUS = """
import sys, torch
from torch import nn
from torchbus import session
torch.set_default_dtype(torch.float64)

def train(mine, device):
    torch.manual_seed(0)
    x, y = torch.randn(24, 6).to(device), torch.randn(24, 2).to(device)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for a, b in zip(x.split(8), y.split(8)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a[mine]), b[mine]).backward()
        optimizer.step()
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]).cpu()

strategy = sys.argv[1]
with session(strategy=strategy, devices=2, accelerator="gpu", replace_sampler=False) as s:
    ours = train(slice(None) if strategy == "dp" else slice(4 * s.rank, 4 * s.rank + 4), s.device)
alone = train(slice(None), "cuda:0")
print(float((ours - alone).abs().max() / alone.abs().max()) < 1e-9)
"""


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("strategy", ["dp", "ddp_sharded", "fsdp"])
def test_on_two_gpus(strategy, tmp_path):
    result = run_script(write_script(tmp_path, ON_GPUS), strategy, timeout_s=200)
    assert result.ok() and result.stdout == "True\n"
