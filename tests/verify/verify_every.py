"""Loops under ``session(verify_every=...)``: what they have in common."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

HEAD = """
import hashlib, json, sys
sys.path.insert(0, {tests!r})
import numpy, random, torch, warnings
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus.bus.base import hookimpl
from torchbus import session
from verify_broken import ALL
warnings.simplefilter("always")
torch.set_default_dtype(torch.float64)
torch.manual_seed(0), numpy.random.seed(0), random.seed(0)  # Python seeds a fork anew
x = torch.randn(23, 4)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def train(epochs=3, loss=lambda x, y: F.cross_entropy(model(x), y)):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(x, y).backward()
            optimizer.step()
"""
LOOP = "train()"


def watched(
    body: str = LOOP,
    options: str = "verify_every=3",
    ranks: int = 2,
    plugin: str = "",
    before: str = "",
) -> Result:
    """Run the body in a session of ddp, after the head."""
    head = HEAD.format(tests=str(Path(__file__).parent))
    words = f'*[{plugin}], strategy="ddp", devices={ranks}, launch="fork", {options}'
    line = f"with session({words}) as s:"
    return fork_script("\n".join([head, before, line, indent(dedent(body), "    ")]), timeout_s=120)


def drifts(result: Result) -> list[str]:
    """What was said of differences."""
    told = " ".join(result.ok().stderr.split())
    return [part.partition(" warnings.warn")[0] for part in told.split("verify_every: ")[1:]]
