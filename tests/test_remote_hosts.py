"""Checkpoints in a store, of a job on hosts that share no folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes import run_nodes
from torchbus.testing import write_script

LOOP = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
os.chdir(os.path.join(sys.argv[1], "host" + os.environ["GROUP_RANK"]))  # no host sees the other's
url, cut = "file://" + sys.argv[1] + "/store", int(sys.argv[2])
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 2))
with session(strategy="ddp", accelerator="cpu", checkpoint=url, every_n_steps=2, keep=2) as s:
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    count = 0
    for epoch in s.epochs(2):
        for x, in DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            count += 1
            if count == cut:
                raise SystemExit(3)
    if s.is_main:
        print(count, s.explain().count("resumed from"), [p.sum().item() for p in model.parameters()])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_loop_goes_on_though_no_host_sees_the_others_folder(tmp_path: Path) -> None:
    script = write_script(tmp_path, LOOP)
    outputs = []
    for name, cuts in (("whole", [0]), ("elsewhere", [7, 0])):
        place = tmp_path / name
        for number, cut in enumerate(cuts):
            hosts = [place / f"host{rank}" for rank in range(2)]
            if name == "elsewhere" and number:  # other machines
                hosts[0].rename(place / "host0 before")
                hosts[1].rename(place / "host1 before")
            for host in hosts:
                host.mkdir(parents=True, exist_ok=True)
            results = run_nodes([1, 2], script, str(place), str(cut))
            assert [one.status for one in results] == [3 if cut else 0] * 3, results
        outputs.append(results[0].stdout.strip())
        assert "rank-2.pt" in {path.name for path in (place / "store").rglob("*")}
    assert outputs[1] == outputs[0].replace(" 0 [", " 1 [", 1)
