import json
import random
import time
import warnings

import numpy as np
import torch
from contents_head import train
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchbus import session
from torchbus.errors import RanksDiverged


class Own(Dataset):
    def __init__(self, rng):
        self.rng = rng

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.tensor(float(i)), self.rng.random()


class Unstable(Own):
    "Whatever is asked, another answer: the clock"

    def __getitem__(self, i):
        return torch.tensor(float(i)), time.perf_counter_ns()


class Augmented(Own):
    def __getitem__(self, i):
        return torch.tensor(float(i)), torch.rand(2), random.random(), np.random.rand()


def case(make, ask=lambda s: None, **options):
    """What each rank has seen, what explain() says, and the warnings; or the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with session(strategy="ddp", devices=2, launch="fork", **options) as s:
                before = len(caught)
                ask(s)
                seen = train(DataLoader(make(s), 2))
                ranks = s.all_gather_object([seen, len(caught) - before])
                explained = " ".join(s.explain().split())
        except RanksDiverged as error:
            return str(error)
    return ranks, explained, [str(one.message) for one in caught]


found = {
    "augmented": case(lambda s: Augmented(None)),
    "clock": case(lambda s: Unstable(None)),
    "own": case(lambda s: TensorDataset(torch.arange(float(s.rank), 24.0, 2.0)), lambda s: s.rank),
    "local": case(lambda s: TensorDataset(torch.arange(float(s.local_rank), 24.0, 2.0))),
    "main": case(lambda s: TensorDataset(torch.arange(float(not s.is_main), 24.0, 2.0))),
    "off": case(
        lambda s: TensorDataset(torch.arange(float(not s.is_main), 24.0, 2.0)),
        replace_sampler=False,
    ),
    "late": case(lambda s: TensorDataset(torch.from_numpy(np.random.default_rng().random(12)))),
    "unnamed": case(lambda s: {i: (torch.tensor(float(i + s.is_main)), 0) for i in range(12)}),
}
print(json.dumps(found))
