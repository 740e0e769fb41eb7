"""Losses that have as many terms as a rank has samples: one for each sample, and a mean of two
over all of them. Prints how far the ranks are from one process.
"""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

x, y = torch.randn(2, 13, 5, 3, dtype=torch.float64).unbind()
data = TensorDataset(x, y)


def of_samples(model, xs, ys, *_):
    return sum(F.mse_loss(model(a), b) for a, b in zip(xs, ys)) / len(xs)


def of_real_and_fake(model, xs, *_):
    ones = torch.ones(len(xs), 5, 3, dtype=torch.float64)
    real = F.binary_cross_entropy_with_logits(model(xs), ones)
    return (real + F.binary_cross_entropy_with_logits(model(xs * 0.5), ones - 1.0)) / 2


def train(loss, batch_size):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for batch in DataLoader(data, batch_size=batch_size):
            optimizer.zero_grad()
            loss(model, *batch).backward()
            optimizer.step()
    return model.weight.detach()


differences = []
for ranks in (2, 3):
    for loss in (of_samples, of_real_and_fake):
        want = train(loss, 2 * ranks)
        with session(
            strategy="ddp", devices=ranks, batch="global", launch="fork", accelerator="cpu"
        ):
            differences.append(float((train(loss, 2 * ranks) - want).abs().max()))
print(max(differences))
