import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info  # noqa: F401
from torchbus import session


class Stuck(Dataset):
    def __init__(self, slow):
        self.slow = slow

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if self.slow and get_worker_info() is not None:
            time.sleep(9)
        return torch.ones(3)


with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork", hang_timeout=2.0) as s:
    net = torch.nn.Linear(3, 1)
    for step in range(4):
        if step == 2 and s.rank == int(sys.argv[1]):
            pass  # odd
        net(torch.ones(4, 3)).mean().backward()
    # after
print("done")
