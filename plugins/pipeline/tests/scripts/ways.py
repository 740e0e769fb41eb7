"""What a loop does besides training: each thing once by itself, and once in a pipeline."""

import copy
import json
import sys

import torch
from exact_head import (
    DataLoader,
    Transformer,
    difference,
    mean_squares,
    mlp,
    next_token,
    nn,
    numbers,
    pipeline,
    state_of,
    tokens,
)

ranks, options = int(sys.argv[1]), json.loads(sys.argv[2])
found, order = {}, []


class Noted(nn.Linear):
    """Notes when it computes, and when its gradient comes."""

    def forward(self, x):
        if torch.is_grad_enabled():
            order.append("F")
        out = super().forward(x)
        if out.requires_grad:
            out.register_hook(lambda gradient: order.append("B"))
        return out


def steps(model, optimizer, data, loss_of, count=3, average=None):
    for x, y in list(DataLoader(data, batch_size=8))[:count]:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        if average is not None:
            with torch.no_grad():
                for mean, parameter in zip(average.parameters(), model.parameters()):
                    mean.mul_(0.9).add_(parameter, alpha=0.1)


def made(make=mlp):
    torch.manual_seed(0)
    model = make()
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def average():
    model, optimizer = made()
    mean = copy.deepcopy(model)
    steps(model, optimizer, numbers(), mean_squares, average=mean)
    return state_of(mean)


def rewind():
    model, optimizer = made(Transformer)
    steps(model, optimizer, tokens(), next_token)
    kept = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    steps(model, optimizer, tokens(), next_token)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    steps(model, optimizer, tokens(), next_token, 1)
    return state_of(model, optimizer)


def another_copy():
    """A copy that is made in the loop, and trained by an optimizer of its own."""
    model, optimizer = made()
    steps(model, optimizer, numbers(), mean_squares)
    fresh = mlp()
    fresh.load_state_dict(model.state_dict())
    steps(fresh, torch.optim.SGD(fresh.parameters(), lr=0.1), numbers(), mean_squares)
    return state_of(fresh)


def numbers_of_the_output():
    model, optimizer = made(Transformer)
    right = []
    for x, y in DataLoader(tokens(), batch_size=8):
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right.append(float((logits.argmax(-1) == y).sum()))
        right.append(float(logits.detach().abs().mean()))
    return torch.tensor(right)


def as_many_rows_as_classes():
    """In the last batch, nothing tells the classes' weights from a row of each sample."""
    model, optimizer = made()
    weight, printed = torch.arange(1.0, 5.0), []
    for x, y in DataLoader(numbers(28), batch_size=8):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y.softmax(1), weight=weight.to(y))
        loss.backward()
        optimizer.step()
        printed.append(loss.item())
    return torch.cat([torch.tensor(printed), state_of(model, optimizer)])


def noted():
    torch.manual_seed(0)
    model = nn.Sequential(Noted(6, 6), nn.Tanh(), Noted(6, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps(model, optimizer, numbers(16), mean_squares, 2)
    return state_of(model)


WAYS = [
    average,
    rewind,
    another_copy,
    numbers_of_the_output,
    as_many_rows_as_classes,
    noted,
]
for way in WAYS:
    alone = way()
    order.clear()
    with pipeline(ranks, **options) as s:
        ours = way()
        same = all(ours.equal(other) for other in s.all_gather(ours))
        found[way.__name__] = [difference(alone, ours), same]
        if way is noted:
            found["order"] = s.all_gather_object("".join(order))
with pipeline(ranks, **options) as s:
    model, optimizer = made()
    mean = copy.deepcopy(model)
    steps(model, optimizer, numbers(), mean_squares, average=mean)
    inside = state_of(model, optimizer, mean)
    missing = sum(p.grad is None for p in model.parameters())
    found["missing"] = s.all_gather_object(missing)
after = state_of(model, optimizer, mean)
found["after the block"] = float((inside - after).abs().max())
found["types"] = sorted({type(p).__name__ for m in (model, mean) for p in m.parameters()})
print(json.dumps(found))
