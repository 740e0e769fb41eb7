"""Learning rates are multiplied by how many more samples a step really sees."""

from __future__ import annotations

import json

from torchbus.testing import fork_script

SCRIPT = """
import json
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus_sampler import Sampler

found = []
for options in ({"strategy": "ddp"}, {"strategy": "dp"}, {"strategy": "ddp2"}, {"strategy": "ddp", "batch": "global"}):
    plugins = [Sampler(batch=options.pop("batch"))] if "batch" in options else []
    with session(*plugins, **options, devices=2, accelerator="cpu", launch="fork", scale_lr="linear") as s:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = 0
        loader = DataLoader(torch.arange(32.0)[:, None], batch_size=8)
        for x in loader:
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()
            steps += 1
        found.append([round(optimizer.param_groups[0]["lr"], 9), steps, s.effective_batch_size])
print(json.dumps(found))
"""


def test_ranks_count_where_a_step_sees_more() -> None:
    assert json.loads(fork_script(SCRIPT).ok().stdout) == [[0.2, 2, 16], [0.1, 4, 8], [0.1, 4, 8], [0.1, 4, 8]]
