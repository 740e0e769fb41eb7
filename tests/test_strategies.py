"""The loops of the zoo under dp and fsdp, against one process: dp with the very same batch, fsdp with the batches of all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import judge, run_plain, run_session
from torchbus.testing import run_script, write_script
from zoo import ZOO, Loop

NOT_EXACT_UNDER_DP = {
    "vae": "noise inside forward is drawn by each rank for its rows",
    "dropout": "noise inside forward is drawn by each rank for its rows",
    "batch_norm": "batch statistics of a rank's rows",
    "gan_noise": "batch statistics of a rank's rows",
    "vq_codebook": "the codebook follows the statistics of a rank's rows",
    "unseeded": "one process draws another order",
    "siamese": "the partner of each sample is drawn with `random`",
    "reinforce": "an environment that is not seeded alike",
}
IN_CI = ("contrastive", "gan", "get_batch")


def under_dp(loop: Loop) -> Loop:
    """Nothing is divided, so that everything is as in one process at its own batch size; nothing is refused for ranks that differ."""
    options = {name: value for name, value in loop.options.items() if name != "loss_reduction"}
    exact = loop.name not in NOT_EXACT_UNDER_DP
    return replace(
        loop, options={**options, "strategy": "dp"}, divided=False, exact=exact, same_output=True, refused="", said="", distinct=(),
        values=loop.values if exact else (),
    )  # fmt: skip


CASES = [pytest.param(loop, id=loop.name, marks=[] if loop.name in IN_CI else [pytest.mark.slow]) for loop in ZOO]


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("loop", CASES)
def test_under_dp(loop, tmp_path):
    loop = under_dp(loop)
    reference = run_plain(loop, tmp_path / "plain")
    problems = judge(loop, run_session(loop, tmp_path / "session", 2, launch="fork"), reference, 2)
    assert not problems, "\n".join(problems[:12])


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
