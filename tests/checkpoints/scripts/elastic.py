import gc
import json
import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

gc.freeze()  # a session looks through all objects; those of torch need not be among them

folder, victim = sys.argv[1], sys.argv[2]
torch.set_default_dtype(torch.float64)


class Steps:
    done = 0  # in this process: a resumed loop gets its own variables back


def train(s=None):
    Steps.done = 0
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(48, 3), torch.randn(48, 1)), 8, shuffle=True)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(3) if s is None else s.epochs(3):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            Steps.done += 1
            if s is not None:
                time.sleep(float(sys.argv[3]))
                if (
                    victim == "worker"
                    and s.rank == 1
                    and epoch == 1
                    and Steps.done > 8
                    and not os.path.exists(folder + "/killed")
                ):
                    open(folder + "/killed", "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), Steps.done


plain, all_steps = train()
with session(
    strategy="ddp",
    accelerator="cpu",
    batch="global",
    checkpoint=folder + "/checkpoints",
    every_n_steps=2,
) as s:
    if s.is_main:
        open(
            folder
            + f"/began-{os.environ['TORCHELASTIC_RESTART_COUNT']}-{s.world_size}-{time.time_ns()}",
            "w",
        ).close()
    found, steps = train(s)
if s.is_main:
    apart = float((found - plain).abs().max() / plain.abs().max())
    with open(folder + "/result.json", "w") as file:
        json.dump({"apart": apart, "steps": steps, "all": all_steps, "ranks": s.world_size}, file)
