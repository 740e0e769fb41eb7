"""A job that trains until a file is there: python shared_machine.py FOLDER LAUNCH."""

import gc
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

gc.freeze()  # a session looks through all objects; those of torch need not be among them

folder, launch = Path(sys.argv[1]), sys.argv[2]
options = {} if launch == "environment" else {"launch": launch, "devices": 2}


def main(s):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4)
    for epoch in range(100000):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        if epoch == 1:
            ranks = s.all_gather_object((os.getpid(), s.world.store.port))
            if s.is_main:
                (folder / "ranks.json").write_text(json.dumps(ranks))
        if any(s.all_gather_object((folder / "done").exists())):
            return


with session(
    strategy="ddp", accelerator="cpu", checkpoint=str(folder / "ck"), every_n_steps=10, **options
) as s:
    main(s)
print("ended well", flush=True)
