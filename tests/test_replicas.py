"""A script that makes its batches itself is told what divides them, in the words of the way it was started."""

from __future__ import annotations

import sys

from torchbus.testing import fork_script, write_script
from torchbus.testing.scripts import run

SLICES = """
import torch, torchbus
from torch import nn
torch.manual_seed(0)
data, flat = torch.randn(12, 3), {flat}
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def main():
    session = torchbus.current()
    print("world", None if session is None else session.world_size)
    for step in range(6):
        x = data[2 * step : 2 * step + 2]
        x = session.shard(x) if {shard} else x
        out = nn.functional.linear(x, model.weight) if flat else model(x)
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
"""
BLOCK = """
with torchbus.session(strategy="ddp", devices=2, launch="fork"):
    main()
print(torchbus.current())
"""


def words(text: str) -> str:
    return " ".join(text.split())


def test_in_a_block() -> None:
    ended = fork_script(SLICES.format(flat=False, shard=False) + BLOCK).ok()
    assert "divide them with s.shard(...), or draw them" in words(ended.stderr)
    assert "strategy='dp' divides each batch in the model's forward" in words(ended.stderr)
    assert "world 2" in ended.stdout and ended.stdout.splitlines()[-1] == "None"
    divided = fork_script(SLICES.format(flat=False, shard=True) + BLOCK).ok()
    assert "computed the same thing" not in divided.stderr
    without_forward = fork_script(SLICES.format(flat=True, shard=False) + BLOCK).ok()
    assert "divide them with s.shard(...)" in words(without_forward.stderr) and "dp" not in without_forward.stderr


def test_under_the_command(tmp_path) -> None:
    path = write_script(tmp_path, SLICES.format(flat=False, shard=False) + "\nmain()\n")
    ended = run([sys.executable, "-m", "torchbus", "run", "--strategy", "ddp", "--devices", "2", str(path)], cwd=tmp_path).ok()
    assert "world 2" in ended.stdout
    assert "divide them with torchbus.current().shard(...)" in words(ended.stderr)
    assert "--strategy dp divides each batch" in words(ended.stderr)
