import json
import os
import sys
import time

import torch
import wandb  # noqa: F401
from torchbus import session

from torchbus_wandb.logger import WandbLogger

options, policy, hurt = json.loads(sys.argv[1])
if "HUSH" in os.environ:
    policy["settings"] = {"api_key": os.environ["HUSH"]}
with session(
    logger=WandbLogger(**policy) if policy else "wandb",
    autolog=False,
    log_every_n_steps=5,
    **options,
) as s:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(1, 101):
        weight.sum().backward()
        optimizer.step()
        s.log(f"rank{s.rank}", 1 / step)
        time.sleep(hurt.get("pause_s", 0.0))
        if step == 10 and "pid" in hurt:
            os.kill(hurt["pid"], hurt["signal"])
    print("looped", s.explain())
    looped_s = time.monotonic()
print(f"ended after {time.monotonic() - looped_s:.1f} s")
