"""ddp2: a loss over all pairs of a node's batch, nodes that have different batches, against one
process that does both.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import run_nodes, two_hosts

from torchbus_testing.scripts import write_script

SCRIPTS = Path(__file__).parent / "scripts"

LOOP = SCRIPTS / "ddp2.py"

OWN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
with session(strategy="ddp2", accelerator="cpu"):
    for x, in DataLoader(TensorDataset(torch.randn(32, 6)), 8):
        torch.optim.SGD([x.clone().requires_grad_()], lr=0.1)
"""


def facts(
    nodes: list[int],
    address: str = "127.0.0.1",
    prefixes: dict[int, list[str]] | None = None,
) -> list[object]:
    """What rank 0 prints."""
    results = run_nodes(nodes, LOOP, address=address, prefixes=prefixes)
    assert all(result.ok() for result in results)
    return list(results[0].json())


@pytest.mark.parametrize("nodes", [[2, 2], pytest.param([2, 1], marks=pytest.mark.slow)])
def test_ddp2_that_was_broken_equals_one_process_that_computes_the_loss_of_each_node(nodes):
    difference, ranks_agree, text = facts(nodes)
    assert difference < 1e-9 and all(ranks_agree) and len(ranks_agree) == sum(nodes)
    assert "each node has its share of the data" in " ".join(text.split())


@pytest.fixture
def hosts() -> Iterator[dict[int, list[str]]]:
    with two_hosts() as found:
        yield found


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"
)
def test_ddp2_on_two_hosts(hosts):
    difference, ranks_agree, _ = facts([2, 2], "10.77.0.1", hosts)
    assert difference < 1e-9 and all(ranks_agree)


@pytest.mark.slow
def test_an_optimizer_over_the_samples_of_a_node_is_refused(tmp_path: Path) -> None:
    results = run_nodes([2, 2], write_script(tmp_path, OWN))
    assert all(result.status for result in results)
    assert (
        "SGD: a tensor of shape (8, 6) belongs to the samples of a batch that the ranks of a node compute together"
        in results[0].stderr
    )
