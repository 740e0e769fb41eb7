import os
import signal
import sys
import time

import torch
from torch import nn
from torchbus import session

ranks, deadly = int(sys.argv[1]), len(sys.argv) > 2
with session(
    strategy="ddp" if ranks > 1 else None,
    devices=ranks,
    accelerator="cpu",
    launch="fork",
    checkpoint="all",
    every_n_steps=1,
) as s:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in s.epochs(6):
        (weight * 2.0).sum().backward()
        optimizer.step()
        if deadly and step == 3 and s.rank == 0:
            if os.fork() == 0:  # as a loader's worker, which lives on for a while
                os.setsid()
                open("child", "w").write(str(os.getpid()))
                while not os.path.exists("end"):
                    time.sleep(0.01)
                os._exit(0)
            while not os.path.exists("child"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
print("begun at", s.explain().count("resumed from"), "ended at", step)
