import sys

import numpy  # noqa: F401  # an argument may name it
from torch.utils.data import DataLoader, Dataset, Subset
from torchbus import session


class Names(Dataset):
    def __init__(self):
        self.paths = eval(sys.argv[1])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return index


with session(lint=True):
    loader = DataLoader(Subset(Names(), range(8)), num_workers=int(sys.argv[2]))
    for batch in loader:  # the line
        pass
    for batch in loader:
        pass
