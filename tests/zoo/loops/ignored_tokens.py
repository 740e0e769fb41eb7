"""Padded sequences: cross_entropy with ignore_index is a mean over tokens, of which each batch has
another number.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Names(Dataset):
    def __len__(self):
        return 57

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        length = 2 + i % 6
        x, y = torch.zeros(8, dtype=torch.long), torch.full((8,), -1)
        x[1 : length + 1] = torch.randint(1, 6, (length,), generator=g)
        y[:length] = x[1 : length + 1]
        y[length] = 0
        return x, y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = (
            nn.Embedding(6, 8),
            nn.GRU(8, 8, batch_first=True),
            nn.Linear(8, 6),
        )

    def forward(self, idx, targets=None):
        logits = self.head(self.rnn(self.embed(idx))[0])
        loss = nn.functional.cross_entropy(logits.view(-1, 6), targets.view(-1), ignore_index=-1)
        return logits, loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    dataset = Names()
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=int(1e10))
    batches = iter(DataLoader(dataset, sampler=sampler, batch_size=args.batch_size))
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.99))
    for step in range(12):
        x, y = next(batches)
        _, loss = model(x, y)
        model.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
