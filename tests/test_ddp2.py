"""ddp2: a loss over all pairs of a node's batch, nodes that have different batches, against one process that does both."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import run_nodes
from torchbus.testing import write_script

LOOP = """
import json, sys, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
torch.set_default_dtype(torch.float64)

def pairs(z):
    z = F.normalize(z, dim=1)
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(z)).flip(0))

def train(batch_size, loss_of):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(44, 6)), batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    printed = []
    for epoch in range(2):
        for x, in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x))
            loss.backward()
            optimizer.step()
            printed.append(loss.item())
    return torch.cat([torch.tensor(printed), *(p.detach().reshape(-1) for p in model.parameters())])

def of_two_nodes(z):
    half = (len(z) + 1) // 2
    return pairs(z[:half]) * half / len(z) + pairs(z[half:]) * (len(z) - half) / len(z)

with session(strategy="ddp2", accelerator="cpu") as s:
    ours = train(8, pairs)
    others = s.all_gather(ours)
    text = s.explain()
if s.is_main:
    alone = train(16, of_two_nodes)
    print(json.dumps([float((ours - alone).abs().max() / alone.abs().max()), [o.equal(ours) for o in others], text]))
"""

OWN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
with session(strategy="ddp2", accelerator="cpu"):
    for x, in DataLoader(TensorDataset(torch.randn(32, 6)), 8):
        torch.optim.SGD([x.clone().requires_grad_()], lr=0.1)
"""


def facts(nodes: list[int], folder: Path, address: str = "127.0.0.1", prefixes: dict[int, list[str]] | None = None) -> list[object]:
    """What rank 0 prints."""
    results = run_nodes(nodes, write_script(folder, LOOP), address=address, prefixes=prefixes)
    assert all(result.ok() for result in results)
    return list(results[0].json())


@pytest.mark.parametrize("nodes", [[2, 2], pytest.param([2, 1], marks=pytest.mark.slow)])
def test_ddp2_that_was_broken_equals_one_process_that_computes_the_loss_of_each_node(nodes, tmp_path):
    difference, ranks_agree, text = facts(nodes, tmp_path)
    assert difference < 1e-9 and all(ranks_agree) and len(ranks_agree) == sum(nodes)
    assert "each node has its share of the data" in " ".join(text.split())


@pytest.fixture
def hosts() -> Iterator[dict[int, list[str]]]:
    """Two network namespaces with a cable between them: by node, the command that runs something there."""
    names = [f"tb{uuid.uuid4().hex[:8]}" for _ in range(2)]
    ends = [f"v{name[2:]}" for name in names]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for node, (name, end) in enumerate(zip(names, ends, strict=True)):
            ip("-n", name, "addr", "add", f"10.77.0.{node + 1}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        run = [["ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME={end}"] for name, end in zip(names, ends, strict=True)]
        yield dict(enumerate(run))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2")
def test_ddp2_on_two_hosts(hosts, tmp_path):
    difference, ranks_agree, _ = facts([2, 2], tmp_path, "10.77.0.1", hosts)
    assert difference < 1e-9 and all(ranks_agree)


@pytest.mark.slow
def test_an_optimizer_over_the_samples_of_a_node_is_refused(tmp_path: Path) -> None:
    results = run_nodes([2, 2], write_script(tmp_path, OWN))
    assert all(result.status for result in results)
    assert "SGD: a tensor of shape (8, 6) belongs to the samples of a batch, of which under this strategy each rank" in results[0].stderr
