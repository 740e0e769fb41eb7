"""Loops for test_precision.py.

``python precision.py FILE`` runs those written by hand, and knows nothing of torchbus.
"""

from __future__ import annotations

import contextlib
import json

import torch
from precision_data import BATCH, SAMPLES, data, values
from precision_gan import gan_by_hand, toggled_by_hand
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

KINDS = {
    "plain": lambda parameters: torch.optim.SGD(parameters, lr=6.4, momentum=0.9),
    "foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "groups": lambda parameters: torch.optim.SGD(
        [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 3.0}], lr=6.4
    ),
    "closures": lambda parameters: torch.optim.SGD(parameters, lr=6.4),
    "replaced": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    "compiled": lambda parameters: torch.optim.SGD(parameters, lr=6.4),
}


def make(dtype, kind="plain"):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    return net, *make_optimizer(net, kind)


def make_optimizer(net, kind):
    optimizer = KINDS[kind](list(net.parameters()))
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)


def unchanged(batch, dtype=torch.float64, kind="plain"):
    """What anybody writes."""
    net, optimizer, scheduler = make(dtype, kind)
    forward = torch.compile(net, backend="eager") if kind == "compiled" else net
    losses = []
    for epoch in range(2):
        if kind == "replaced" and epoch:
            optimizer, scheduler = make_optimizer(net, "foreach")
        for x, y in DataLoader(TensorDataset(*data()), batch_size=batch):

            def closure(x=x, y=y, optimizer=optimizer):
                optimizer.zero_grad()
                loss = (forward(x.to(dtype)) - y).square().mean() / 64  # small enough for float16
                loss.backward()
                losses.append(loss.item())
                return loss

            if kind == "closures":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            scheduler.step()
    return values(net)


def by_hand(batch, window=1, clip=None, cast=None, dtype=torch.float64, kind="plain"):
    """Accumulation, clipping, autocast and loss scaling by hand; each batch weighted by its
    samples.
    """
    net, optimizer, scheduler = make(dtype, kind)
    scaler = torch.amp.GradScaler("cpu", enabled=cast == torch.float16)
    inputs, targets = data()
    for epoch in range(2):
        if kind == "replaced" and epoch:
            optimizer, scheduler = make_optimizer(net, "foreach")
        for start in range(0, SAMPLES, batch * window):
            optimizer.zero_grad()
            x, y = inputs[start : start + batch * window], targets[start : start + batch * window]
            for part, target in zip(x.split(batch), y.split(batch), strict=True):
                with torch.autocast("cpu", cast) if cast else contextlib.nullcontext():
                    output = net(part.to(dtype))
                output = output.float() if cast else output
                scaler.scale(
                    (output - target).square().mean() / 64 * (len(part) / len(x))
                ).backward()
            scaler.unscale_(optimizer)
            if clip:
                clip_grad_norm_(net.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    return values(net)


def tokens(batch, weigh=lambda count: None):
    """A mean over tokens, of which each sample has another number."""
    net, optimizer, _ = make(torch.float64)
    inputs, targets = data()
    for x, y, count in DataLoader(
        TensorDataset(inputs, targets, torch.arange(SAMPLES) % 5), batch_size=batch
    ):
        optimizer.zero_grad()
        weigh(count.sum().item())
        (
            ((net(x.double()) - y).square().squeeze(1) * count).sum()
            / count.sum().clamp(min=1)
            / 64
        ).backward()
        optimizer.step()
    return values(net)


def sparse(batch):
    """The gradients of a table of which a batch uses a few rows."""
    torch.manual_seed(0)
    table = nn.Embedding(10, 2, sparse=True).double()
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    for (index,) in DataLoader(TensorDataset(torch.arange(SAMPLES) % 7), batch_size=batch):
        optimizer.zero_grad()
        table(index).square().mean().backward()
        optimizer.step()
    return values(table)


def expected(ranks):
    """What every case of test_precision.py must reach."""
    found = {
        "gan": gan_by_hand(3 * ranks, 2),
        "toggle": toggled_by_hand(2 * ranks),
        "tokens": tokens(3 * ranks * 3),
    }
    batch = BATCH * ranks
    found["sparse"] = sparse(batch * 3)
    found |= {
        f"kind {kind}": by_hand(batch, 3, 0.001, kind=kind) for kind in KINDS if kind != "plain"
    }
    found |= {
        "accumulate": by_hand(batch, 3),
        "clip": by_hand(batch, 1, 0.001),
        "accumulate clip": by_hand(batch, 3, 0.001),
    }
    for word, cast in (("16", torch.float16), ("bf16", torch.bfloat16)):
        found[word] = by_hand(batch, 1, None, cast, torch.float32)
        found[f"{word} clip"] = by_hand(batch, 1, 0.001, cast, torch.float32)
        found[f"{word} accumulate"] = by_hand(batch, 3, None, cast, torch.float32)
        found[f"{word} accumulate clip"] = by_hand(batch, 3, 0.001, cast, torch.float32)
    return found


if __name__ == "__main__":
    print(json.dumps({ranks: expected(ranks) for ranks in (1, 2)}))
