"""Losses whose terms weigh apart, on N ranks, against one big batch in one process: batches of two
loaders whose shares differ at the ragged end, and terms over unlike counts.

Called with a JSON dict: strategy, devices, loss_weight, cases, but (cases to leave out); prints for
each case the largest difference of any parameter and of the printed losses, and what was said.
"""

import json
import sys
import warnings

import torch
import torch.distributed as dist
from of_tasks import (
    ce,
    dotted,
    learned_weights,
    one_weight,
    several_roots,
    stacked,
    stacked_weights,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_num_threads(1)
asked = json.loads(sys.argv[1])
B = 4
g = torch.Generator().manual_seed(5)
X = torch.randn(137, 6, generator=g, dtype=torch.float64)
Y = torch.randint(0, 3, (137,), generator=g)
U = torch.randn(137, 6, generator=g, dtype=torch.float64)
LABELS = torch.randint(0, 3, (137, 5), generator=g)
LABELS[torch.rand(137, 5, generator=g) < torch.rand(137, 1, generator=g)] = -100
LABELS[12:16] = -100  # a rank's whole share
SOME = LABELS.clone()
SOME[:, 0] = Y  # each sample has a label
# nothing is ignored before the last steps
LATE = torch.where(torch.arange(137)[:, None] < 120, LABELS.clamp(min=0), LABELS)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.tokens = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 15)
        self.log_variances = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.second(hidden), self.tokens(hidden).view(-1, 5, 3)


def supervised(m, x, y, u):
    return F.cross_entropy(m(x)[0], y) + 0.5 * F.mse_loss(m(u)[0], u[:, :3])


def consistency(m, x, y, u):
    return (
        F.cross_entropy(m(x)[0], y) + (m(u)[0].softmax(1) - m(-u)[0].softmax(1)).square().mean() / 3
    )


def as_one_batch(m, x, y, u):
    z, _ = m(torch.cat([x, u]))
    return F.cross_entropy(z[: len(x)], y) - 0.3 * z[len(x) :].square().mean()


def mean_of_both(m, x, y, u):
    return m(torch.cat([x, u]))[0].square().mean()


def confident(m, x, y, u):
    z, _ = m(u)
    likely, pseudo = z.detach().softmax(1).max(1)
    unlabelled = (F.cross_entropy(z, pseudo, reduction="none") * (likely > 0.4)).mean()
    return F.cross_entropy(m(x)[0], y, label_smoothing=0.1) + unlabelled


def copies(m, x, y, u):
    return m(x.float().double())[0].square().mean() + m(u.float().double())[0].abs().mean()


def divided_sums(m, x, y, u):
    return F.cross_entropy(m(x)[0], y, reduction="sum") / len(x) + m(u)[0].square().sum() / len(u)


def with_decay(m, x, y, u):
    return supervised(m, x, y, u) + 1e-2 * sum(p.square().sum() for p in m.parameters())


def adversarial(m, x, y, u):
    return supervised(m, x, y, u) + (m(x)[0].mean(0) - m(u)[0].mean(0)).square().sum()


def both_ignore(m, x, y, u):
    """The second loader's labels are read off its samples; so many of them are ignored."""
    labels = torch.where(u[:, 0] > 0.3, -100, (u[:, 1] > 0).long())
    return F.cross_entropy(m(x)[0], y) + F.cross_entropy(m(u)[0], labels)


def tokens_and_samples(m, x, y, u):
    z, tokens = m(x)
    return ce(tokens, y) + 0.5 * z.square().mean()


def two_heads(m, x, y, u):
    z, tokens = m(x)
    return ce(tokens, y) + F.cross_entropy(z, y[:, 0])


def mask_and_samples(m, x, y, u):
    z, tokens = m(x)
    mask = y >= 0
    return (tokens.square().sum(2) * mask).sum() / mask.sum().clamp(min=1) + F.mse_loss(z, x[:, 3:])


def boxes_and_samples(m, x, y, u):
    """The number of boxes is normalised over ranks by the script."""
    z, tokens = m(x)
    number = (y >= 0).double().sum()
    if dist.is_initialized():
        dist.all_reduce(number)
        number = number / dist.get_world_size()
    return (
        (tokens.square().sum(2) * (y >= 0)).sum() / number.clamp(min=1).item()
        + F.cross_entropy(tokens[:, 0], y[:, 0])
        + z.square().mean()
    )


def weighted_mean(m, x, y, u):
    each = m(x)[0].square().mean(1)
    weights = x[:, 0].exp()
    return (each * weights).sum() / weights.sum()


def smoothed(m, x, y, u):
    return ce(m(x)[1], y, label_smoothing=0.1)


ZIPPED = [
    supervised,
    consistency,
    as_one_batch,
    mean_of_both,
    confident,
    copies,
    divided_sums,
    with_decay,
    adversarial,
    both_ignore,
]
TERMS = [
    tokens_and_samples,
    two_heads,
    mask_and_samples,
    boxes_and_samples,
    weighted_mean,
    smoothed,
    stacked,
    dotted,
    learned_weights,
    stacked_weights,
    one_weight,
    several_roots,
]


def train(loss, batch, first, second, labels):
    torch.manual_seed(0)
    model = Net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    printed = []
    one = DataLoader(TensorDataset(X[:first], labels[:first]), batch_size=batch)
    other = DataLoader(TensorDataset(U[:second]), batch_size=batch) if second else None
    for _ in range(2):
        for (x, y), (u,) in (
            zip(one, other, strict=False) if other else ((pair, (None,)) for pair in one)
        ):
            optimizer.zero_grad()
            value = loss(model, x, y, u)
            torch.autograd.backward(value)
            # each of several losses stays its rank's own
            printed.append(value.item() if isinstance(value, torch.Tensor) else 0.0)
            optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.state_dict().values()]), torch.tensor(
        printed, dtype=torch.float64
    )


def compare(loss, first, second=0, labels=Y):
    want, losses = train(loss, B * asked["devices"], first, second, labels)
    options = {
        name: asked[name]
        for name in ("strategy", "devices", "loss_weight", "accumulate_grad_batches")
        if name in asked
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with session(**options, accelerator="cpu", launch="fork") as s:
            got, told = train(loss, B, first, second, labels)
            explained = s.explain()
    apart = (
        float((told - losses).nan_to_num().abs().max())
        if torch.equal(told.isnan(), losses.isnan())
        else -1.0
    )
    return [
        float((got - want).abs().max()),
        apart,
        [str(one.message)[:90] for one in said],
        explained,
    ]


CASES = {
    f"{loss.__name__}, {first} and {second}": (loss, first, second)
    for loss in ZIPPED
    for first, second in asked.get("sizes", [])
}
CASES |= {
    loss.__name__: (loss, 69 if loss is boxes_and_samples else 67, 0, LABELS) for loss in TERMS
}
CASES["learned_weights"] = (learned_weights, 67, 0, SOME)
CASES["learned weights of nothing"] = (learned_weights, 67, 0, LABELS)
CASES |= {"begin late": (tokens_and_samples, 137, 0, LATE)}
chosen = [
    name for name in CASES if name.partition(",")[0] in asked.get("cases", [name.partition(",")[0]])
]
print(
    json.dumps(
        {
            name: compare(*CASES[name])
            for name in chosen
            if name.partition(",")[0] not in asked.get("but", ())
        }
    )
)
