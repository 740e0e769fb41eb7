"""Many losses, each trained by one process and by several ranks that share its batches."""

import json
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
RANKS = int(sys.argv[1])
ROWS = 8  # of a batch; the last one has 5


class Net(nn.Module):
    def __init__(self, columns=ROWS // RANKS):  # as many columns as a rank has samples
        super().__init__()
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, columns)
        self.spectrum = nn.Parameter(torch.randn(4, dtype=torch.cdouble))
        self.register_buffer("last", torch.zeros(1, 5))

    def forward(self, x):
        hidden = self.body(torch.fft.irfft(torch.fft.rfft(x) * self.spectrum, n=6)).tanh()
        self.last = hidden.detach()
        return self.head(hidden)


def masked(net, x, m):
    z = net(x)
    return F.mse_loss(z[m], x[..., : z.shape[-1]][m])


def nothing(net, x, m):
    z, here = net(x).square().mean(-1), m.any(1) & (x[:, 0, 0] > 0.8)
    return z[here].mean() if here.any() else torch.zeros((), requires_grad=True)


def nothing_of_zero(net, x, m):
    z, here = net(x), m.any(1) & (x[:, 0, 0] > 0.8)
    return (
        z.square().mean(-1)[here].sum() / (here.sum() * z.shape[1]) if here.any() else z.sum() * 0
    )


def vae(net, x, m):
    z = net(x)
    return (z - 1).square().sum() - 0.5 * (1 + z - z.exp()).sum()


def things(net, x, m):
    losses = [net(x[i, j]).square().mean().view(1).mean() for i, j in m.nonzero().tolist()]
    return sum(losses) / len(losses)


def over_positives(net, x, m):
    """As a focal loss: where a share has no positives, its divisor is 1."""
    positive = (m & (x[..., 0] > 1.8)).to(x.dtype)
    losses = F.binary_cross_entropy_with_logits(net(x)[..., 0], positive, reduction="none")
    return losses.sum() / max(1, int(positive.sum()))


def over_boxes(net, x, m):
    z, positive = net(x), m & (x[..., 0] > 1.8)
    boxes = (z[positive] - 1).square().sum() / max(1, len(positive.nonzero()))
    return z.square().sum() / max(1.0, positive.sum().item()) + 2 * boxes


def over_each_image(net, x, m):
    each = [z.square().sum() / max(1, int(some.sum())) for z, some in zip(net(x), m, strict=True)]
    other = [
        (z * some[:, None]).sum() / max(1, some.sum()) for z, some in zip(net(x), m, strict=True)
    ]
    return sum(each) / len(each) + sum(other) / len(other)


def over_all_images(net, x, m):
    losses = [
        F.mse_loss(z[some], z[some] * 0 + 1, reduction="sum")
        for z, some in zip(net(x), m)
        if some.any()
    ]
    return sum(losses) / int(m.sum())


def episodes(net, x, m):
    """A few labelled and unlabelled things in each sample."""
    losses = []
    for each in x:
        known, asked = net(each[:2]), net(each[2:])
        losses.append(F.cross_entropy(-torch.cdist(asked, known), torch.arange(2)))
    return torch.stack(losses).mean()


def score(row):
    """The score of all paths through one sample, as a CRF or an RNN transducer computes it."""
    total = row[0]
    for step in row[1:]:
        total = torch.logsumexp(torch.stack([total + step, step]), 0)
    return -total.logsumexp(0)


def scores(net, x, m):
    return torch.stack([score(row) for row in net(x)]).mean()


def scores_by_tokens(net, x, m):
    tokens = 1 + m[:, 1:].sum(1)
    each = [score(row[:count]) for row, count in zip(net(x), tokens.tolist(), strict=True)]
    return torch.stack(each).sum() / tokens.sum()


LOSSES = {
    "scores": scores,
    "scores by tokens": scores_by_tokens,
    "over positives": over_positives,
    "over boxes": over_boxes,
    "over each image": over_each_image,
    "episodes": episodes,
    "weights below one": lambda net, x, m: (
        (net(x).square().mean((1, 2)) * (w := 0.02 * x[:, 0, 0].abs())).sum() / float(w.sum())
    ),
    "a squared norm": lambda net, x, m: net(x).mean() + 0.1 * net(x).norm() ** 2 / (2 * len(x)),
    "normalised classes": lambda net, x, m: (
        F.linear(F.normalize(net(x)), F.normalize(net.head.weight[:, : len(net.head.bias)]))
        .square()
        .mean()
    ),
    "in a vector of one": lambda net, x, m: (torch.zeros(1) + net(x).square().mean()).sum(),
    "masked": masked,
    "sum": lambda net, x, m: net(x).square().sum(),
    "sum over all but a factor": vae,
    "mean in two steps": lambda net, x, m: net(x).square().mean((0, 1)).sum(),
    "nothing": nothing,
    "nothing of zero": nothing_of_zero,
    "over all images": over_all_images,
    "mean over samples first": lambda net, x, m: net(x).square().mean(0).sum(),
    "sum over samples first": lambda net, x, m: net(x).square().sum(0).mean(),
    "by dims": lambda net, x, m: net(x).square()[m].mean((0, 1)),
    "of each step": lambda net, x, m: (
        net(x).square().mean((0, 2)) * torch.linspace(1, 2, 4)
    ).sum(),
    "as many steps as ranks": lambda net, x, m: (
        (z := net(x[:, :RANKS]).square().mean(-1)).sum() / torch.ones_like(z).sum()
    ),
    "tokens of these steps": lambda net, x, m: F.cross_entropy(
        net(x).flatten(0, 1), torch.ones(4 * len(x), ROWS // RANKS).softmax(1)
    ),
    "time first": lambda net, x, m: net(x.transpose(0, 1)).transpose(0, 1).square().mean(),
}


def train(loss_of, hook):
    torch.manual_seed(0)
    x, mask = torch.randn(29, 4, 6), torch.rand(29, 4) < torch.linspace(0.2, 1.0, 29)[:, None]
    net = Net()
    if hook:
        for parameter in net.head.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for rows, some in DataLoader(TensorDataset(x, mask), batch_size=ROWS):
        optimizer.zero_grad()
        loss = loss_of(net, rows, some)
        loss.backward()
        optimizer.step()
    values = [net.head.weight, net.body.weight, torch.view_as_real(net.spectrum), loss]
    return torch.cat([value.detach().flatten() for value in values])


def found(hook):
    return {name: train(loss_of, hook) for name, loss_of in LOSSES.items()}


if __name__ == "__main__":
    alone = {hook: found(hook) for hook in (False, True)}
    asked = {"devices": RANKS, "strategy": "ddp", "accelerator": "cpu", "launch": "fork"}
    with session(**asked, batch="global"), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the forward fills Net.last")  # it does
        together = {hook: found(hook) for hook in (False, True)}
    print(
        json.dumps(
            {
                f"{name}, hook: {hook}": float((value - together[hook][name]).abs().max())
                for hook, values in alone.items()
                for name, value in values.items()
            }
        )
    )
