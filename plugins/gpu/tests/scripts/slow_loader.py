import sys
import time

import pretend  # noqa: F401
import torch
from torch.utils.data import DataLoader
from torchbus import session


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return torch.ones(3)


with session(devices=[0], capture=False, interval_s=0.1):
    for batch in DataLoader(Slow()):  # the line
        time.sleep(float(sys.argv[2]))
