import json
import os
import re
import sys
import time
import warnings

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchbus import session
from torchbus.errors import RanksDiverged

from torchbus_sampler.orders.shared import SHARED_FROM

N = SHARED_FROM + 5


class Large(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return torch.tensor([float(index)], dtype=torch.float64)


def memory():
    "Of orders: permissions and inode of what is mapped, and the number of open files"
    maps = [line.split() for line in open("/proc/self/maps") if "torchbus-order" in line]
    return [(line[1], line[4]) for line in maps], sum(
        "torchbus-order" in link(fd) for fd in os.listdir("/proc/self/fd")
    )


def link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # the one by which the list was read
        return ""


def state(generator=None):
    return (torch.get_rng_state() if generator is None else generator.get_state()).sum().item()


def steps(s, sampler, count, generator=None, **options):
    "Indices of so many steps, on all ranks; and what memory is mapped meanwhile"
    weight, taken = s.adopt(torch.nn.Parameter(torch.ones(1, dtype=torch.float64))), []
    loader = DataLoader(Large(), 4, sampler=sampler, **options)
    for number, batch in enumerate(loader):
        taken.append(batch.flatten().long().tolist())
        if number == 0:
            during, after_draw = memory(), state(generator) if generator is not None else 0
        (weight * batch).mean().backward()
        if number + 1 == count:
            break
    del loader, batch
    return s.all_gather_object([taken, during, after_draw])
