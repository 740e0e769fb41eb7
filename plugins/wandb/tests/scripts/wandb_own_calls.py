import wandb
from torchbus import session

with session(devices=2) as s:
    run = wandb.init(project="digits", mode="offline")
    for step in range(3):
        wandb.log({"loss": 1.0 + s.rank, "rank": s.rank})
    wandb.finish()
