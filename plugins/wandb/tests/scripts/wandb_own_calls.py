import os

import torch
import wandb
from torchbus import session

with session(devices=2) as s:
    run = wandb.init(project="digits", mode="offline")
    for step in range(3):
        wandb.log({"loss": 1.0 + s.rank, "rank": s.rank})
    seen = [wandb.run.id, wandb.run.name, wandb.run.dir]
    assert s.all_gather_object(seen) == [seen] * 2
    torch.save({"weight": 1.0}, os.path.join(wandb.run.dir, "model.pt"))
    wandb.finish()
