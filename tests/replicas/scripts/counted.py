"""Windows, and losses that count tokens, in replicas of one rank against one plain process.

Prints, as JSON, by case the largest difference of parameters.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import Unsupported

from torchbus_ft.strategy import FT

parser = argparse.ArgumentParser()
parser.add_argument("--name")
parser.add_argument("--lighthouse")
parser.add_argument("--out", type=Path)
parser.add_argument("--inside", default="ddp")
parser.add_argument("--devices", type=int, default=1)
args = parser.parse_args()

x = torch.randn(46, 6, generator=torch.Generator().manual_seed(0)).double()
labels = torch.arange(46 * 3).reshape(46, 3) % 5
labels[::3, 1:] = -100  # padding
labels[1::7] = -100


def whole(model: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1) for one in model.state_dict().values()])


def tokens(model, inputs, targets) -> torch.Tensor:
    """A mean over the tokens that are no padding."""
    logits = model(inputs).reshape(-1, 5)
    return nn.functional.cross_entropy(logits, targets.reshape(-1))


def samples(model, inputs, targets) -> torch.Tensor:
    return model(inputs).square().mean()


def train(loss_of, batch: int, stop: int = 10**6, told=None) -> torch.Tensor:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 15)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    for _ in range(2):
        for number, (inputs, targets) in enumerate(DataLoader(TensorDataset(x, labels), batch)):
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            if told is not None:
                told(int((targets != -100).sum()))
            loss.backward()
            optimizer.step()
            if number + 1 == stop:
                break
    return whole(model)


def in_session(run, **words) -> torch.Tensor:
    given = {"lighthouse": args.lighthouse, "replica": args.name, "min_replicas": 2}
    strategy = FT(**given, replica_strategy=args.inside)
    with session(strategy=strategy, devices=args.devices, launch="fork", **words) as s:
        return run(s)


def by_replicas(loss_of, stop: int = 10**6, says: bool = False, **words) -> torch.Tensor:
    def run(s) -> torch.Tensor:
        return train(loss_of, 4 // args.devices, stop, s.backward_weight if says else None)

    return in_session(run, **words)


def hidden(model, inputs, targets) -> torch.Tensor:
    """The same mean as ``tokens``, of which the graph shows nothing."""
    return tokens(model, inputs, targets) * torch.ones(()).double()


def first_batches(count: int) -> torch.Tensor:
    """Windows of 24 samples and less, of which a pass uses only so many batches of 8.

    The step with the last one comes as the block ends: not here.
    """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 15)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    windows = x[: 8 * count].split(24)
    for parts in (windows, windows[:-1]):
        for part in parts:
            optimizer.zero_grad()
            samples(model, part, None).backward()
            optimizer.step()
    return whole(model)


def clipped(batch: int) -> torch.Tensor:
    """A frozen layer, another learning rate for the last one, and clipped gradients."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 15)).double()
    model[1].requires_grad_(False)
    groups = [{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.1}]
    optimizer = torch.optim.Adam(groups, 0.02)
    for inputs, targets in DataLoader(TensorDataset(x, labels), batch):
        optimizer.zero_grad()
        tokens(model, inputs, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    return whole(model)


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def message(run) -> str:
    try:
        run()
    except Unsupported as error:
        return str(error)
    return ""


windows = {"accumulate_grad_batches": 3}
told = {
    "tokens": far(by_replicas(tokens), train(tokens, 8)),
    "tokens in windows": far(by_replicas(tokens, **windows), train(tokens, 24)),
    "told": far(by_replicas(hidden, says=True), train(hidden, 8)),
    "told in windows": far(by_replicas(hidden, says=True, **windows), train(hidden, 24)),
    "clipped": far(in_session(lambda s: clipped(4 // args.devices)), clipped(8)),
    "left by break": far(by_replicas(samples, stop=5, **windows), first_batches(5)),
    "refused": message(lambda: by_replicas(tokens, stop=5, **windows)),
}
print(json.dumps(told))
