"""A batch sampler of the user's own: sorted by length, so that sequences of a batch have similar
ones.
"""

import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self, n=50):
        g = torch.Generator().manual_seed(38)
        lengths = torch.randint(2, 9, (n,), generator=g).tolist()
        self.items = [torch.randn(length, 3, generator=g) for length in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], self.items[i].sum()


class SortedBatchSampler:
    def __init__(self, dataset, batch_size, seed):
        self.lengths = [len(item) for item in dataset.items]
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self):
        noise = torch.rand(
            len(self.lengths), generator=torch.Generator().manual_seed(self.seed + self.epoch)
        ).tolist()
        order = sorted(range(len(self.lengths)), key=lambda i: self.lengths[i] + noise[i])
        self.epoch += 1
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size]


def pad(batch):
    sequences, targets = zip(*batch)
    lengths = torch.tensor([len(s) for s in sequences])
    return pad_sequence(sequences, batch_first=True), lengths, torch.stack(targets)


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
dataset = Sequences()
loader = DataLoader(
    dataset, batch_sampler=SortedBatchSampler(dataset, args.batch_size, seed=1), collate_fn=pad
)
rnn, head = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 1)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-2)
for epoch in range(2):
    for sequences, lengths, targets in loader:
        output, _ = rnn(sequences)
        last = output[torch.arange(len(lengths)), lengths - 1]
        loss = (head(last).squeeze(1) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} of {len(loader)} batches, loss {loss.item():.5f}")
