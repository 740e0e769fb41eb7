"""Losses over outputs of recurrent layers, each trained by one process and by ranks."""

import json
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
RANKS, STEPS, CLASSES = int(sys.argv[1]), 4, 5


def gru(net, x):
    return net["gru"](x)[0]


def packed(net, x):
    lengths = 2 + 2 * (x[:, 0, 0] > 0).long()
    steps = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(net["gru"](steps)[0], batch_first=True, total_length=STEPS)[0]


def written(net, x):
    """The outputs of a decoder's steps are written into a tensor."""
    outputs, state = torch.zeros(len(x), STEPS, 8), torch.zeros(len(x), 8)
    for step in range(STEPS):
        state = net["cell"](x[:, step], state)
        outputs[:, step] = state
    return outputs


def written_time_first(net, x):
    outputs, state = torch.zeros(STEPS, len(x), 8), torch.zeros(len(x), 8)
    for step in range(STEPS):
        state = net["cell"](x[:, step], state)
        outputs[step] = state
    return outputs.transpose(0, 1)


def repeated(net, x):
    """A vector of each sample is added to all of its time steps."""
    return (net["gru"](x)[0].transpose(0, 1) + x.mean(1)).transpose(0, 1)


def attention(net, x):
    """Heads are joined with the samples inside, and time is first."""
    steps = x.transpose(0, 1)
    return net["attention"](steps, steps, steps)[0].permute(1, 0, 2)


def each(logits, y):
    return F.cross_entropy(logits.transpose(1, 2), y.clamp(0), reduction="none")


def of_sequences(logits, y):
    mask = (y >= 0).to(logits.dtype)
    return ((each(logits, y) * mask).sum(1) / (mask.sum(1) + 1)).mean()


LOSSES = {
    "tokens": lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten()),
    "tokens and a penalty": lambda logits, y: (
        F.cross_entropy(logits.flatten(0, 1), y.flatten())
        + 0.1 * logits.logsumexp(-1).square().mean()
    ),
    "sequences": of_sequences,
    "all steps": lambda logits, y: each(logits, y).mean(),
    "steps first": lambda logits, y: each(logits, y).mean(0).mean(),
    "sum of steps": lambda logits, y: each(logits, y).sum(1).mean(),
    "distance": lambda logits, y: F.mse_loss(logits, F.one_hot(y.clamp(0), CLASSES).to(logits)),
}
LAYERS = (gru, packed, written, written_time_first, repeated, attention)


def train(layer, loss_of):
    torch.manual_seed(0)
    x, y = torch.randn(19, STEPS, 8), torch.randint(0, CLASSES, (19, STEPS))
    y[torch.rand(19, STEPS) < 0.4] = -100
    net = nn.ModuleDict(
        {
            "gru": nn.GRU(8, 8, batch_first=True),
            "attention": nn.MultiheadAttention(8, 2),
            "cell": nn.GRUCell(8, 8),
            "head": nn.Linear(8, CLASSES),
        }
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=7):
        optimizer.zero_grad()
        loss_of(net["head"](layer(net, inputs)), targets).backward()
        optimizer.step()
    return torch.cat([value.detach().flatten() for value in net.parameters()])


def found():
    return {
        f"{layer.__name__}, {name}": train(layer, loss_of)
        for layer in LAYERS
        for name, loss_of in LOSSES.items()
    }


if __name__ == "__main__":
    alone = found()
    with (
        session(devices=RANKS, strategy="ddp", accelerator="cpu", launch="fork", batch="global"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        together = found()
    apart = {name: float((value - together[name]).abs().max()) for name, value in alone.items()}
    print(json.dumps(apart))
