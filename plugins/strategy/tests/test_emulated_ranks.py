"""What losses count by their graphs, where all sizes collide: shares that are weighed by it, one
after another in this process, have together the gradient of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from torchbus_strategy.loss.reading import is_sum, terms_of
from torchbus_strategy.loss.term_weights import unique
from torchbus_strategy.loss.values import weigh

Batch = tuple[Tensor, ...]
Loss = Callable[..., Tensor]


class Net(nn.Module):
    def __init__(self, wide: int, columns: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(wide, 3), nn.Linear(3, columns)
        self.table = nn.Parameter(torch.randn(columns, columns))

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x).tanh())


def tokens(y: Tensor, m: Tensor) -> Tensor:
    return y.masked_fill(~m, -100)


def over_steps(n: Net, x: Tensor, t: Tensor) -> list[Tensor]:
    return [F.mse_loss(n(x[:, one]), t[:, one]) for one in range(x.shape[1])]


def of_forces(n: Net, x: Tensor, t: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    energy = n(x).sum((1, 2))
    (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    return (energy - t.sum((1, 2))).square().mean() + force.square().sum((1, 2)).mean()


# n: the model, x: inputs, e: squares of its errors, t: targets, m: a mask of samples and steps,
# y: labels of steps, w: a weight for each sample
LOSSES: dict[str, Loss] = {
    "mse": lambda n, x, e, t, m, y, w: F.mse_loss(n(x), t),
    "masked mse": lambda n, x, e, t, m, y, w: F.mse_loss(n(x)[m], t[m]),
    "masked inputs": lambda n, x, e, t, m, y, w: F.mse_loss(n(x[m]), t[m]),
    "masked": lambda n, x, e, t, m, y, w: e[m].mean(),
    "masked elements": lambda n, x, e, t, m, y, w: e[m[..., None].expand_as(e)].mean(),
    "selected": lambda n, x, e, t, m, y, w: torch.masked_select(e, m[..., None]).mean(),
    "masked steps": lambda n, x, e, t, m, y, w: (e.mean(-1) * m).sum() / m.sum(),
    "masked in turn": lambda n, x, e, t, m, y, w: e[m].mean(-1).mean(0),
    "masked by dims": lambda n, x, e, t, m, y, w: e[m].mean((0, 1)),
    "masked rows": lambda n, x, e, t, m, y, w: e[m[:, 0]].mean(),
    "rows by numbers": lambda n, x, e, t, m, y, w: e[m[:, 0].nonzero()[:, 0]].mean(),
    "rows by index": lambda n, x, e, t, m, y, w: e.index_select(0, m[:, 0].nonzero()[:, 0]).mean(),
    "steps by numbers": lambda n, x, e, t, m, y, w: e[m.nonzero(as_tuple=True)].mean(),
    "flat steps": lambda n, x, e, t, m, y, w: e.flatten(0, 1)[m.flatten().nonzero()[:, 0]].mean(),
    "masked columns first": lambda n, x, e, t, m, y, w: e.permute(2, 0, 1)[:, m].mean(),
    "masked, transposed": lambda n, x, e, t, m, y, w: e.transpose(0, 1)[m.T].mean(),
    "where": lambda n, x, e, t, m, y, w: torch.where(m[..., None], e, 0.0).sum() / m.sum(),
    "not a number": lambda n, x, e, t, m, y, w: e.mean(-1).masked_fill(~m, math.nan).nanmean(),
    "sum": lambda n, x, e, t, m, y, w: e.sum(),
    "sum by dims": lambda n, x, e, t, m, y, w: e.sum((0, 1, 2)),
    "sum in turn": lambda n, x, e, t, m, y, w: e.mean((1, 2)).sum(0),
    "sum over samples": lambda n, x, e, t, m, y, w: e.sum(0).mean(),
    "sum over all": lambda n, x, e, t, m, y, w: e.sum() / (len(x) * x.shape[1]),
    "sum by dims, over a mask": lambda n, x, e, t, m, y, w: (
        (e * m[..., None]).sum((0, 1, 2)) / m.sum()
    ),
    "sum of each sample": lambda n, x, e, t, m, y, w: e.sum((1, 2)).mean(),
    "mean by dims": lambda n, x, e, t, m, y, w: e.mean((0, 1, 2)),
    "mean in turn": lambda n, x, e, t, m, y, w: e.mean(0).mean(0).mean(0),
    "mean over samples first": lambda n, x, e, t, m, y, w: e.mean(0).sum(),
    "mean of all steps first": lambda n, x, e, t, m, y, w: e.mean((0, 1)).sum(),
    "mean, dims remain": lambda n, x, e, t, m, y, w: e.mean(0, keepdim=True).mean(),
    "weights of steps": lambda n, x, e, t, m, y, w: (
        e.mean((0, 2)) * torch.linspace(1, 2, x.shape[1])
    ).sum(),
    "weights of samples": lambda n, x, e, t, m, y, w: (e.mean((1, 2)) * w).sum() / w.sum(),
    "dot": lambda n, x, e, t, m, y, w: e.mean((1, 2)) @ w / w.sum(),
    "tokens": lambda n, x, e, t, m, y, w: F.cross_entropy(
        n(x).flatten(0, 1), tokens(y, m).flatten()
    ),
    "tokens in columns": lambda n, x, e, t, m, y, w: F.cross_entropy(
        n(x).transpose(1, 2), tokens(y, m)
    ),
    "soft tokens": lambda n, x, e, t, m, y, w: F.cross_entropy(
        n(x).flatten(0, 1), t.softmax(-1).flatten(0, 1)
    ),
    "gathered": lambda n, x, e, t, m, y, w: -n(x).gather(2, y[..., None])[..., 0][m].mean(),
    "divergence": lambda n, x, e, t, m, y, w: F.kl_div(
        n(x).log_softmax(-1).flatten(0, 1), t.softmax(-1).flatten(0, 1), reduction="batchmean"
    ),
    "transposed": lambda n, x, e, t, m, y, w: e.transpose(0, 1).mean(),
    "permuted": lambda n, x, e, t, m, y, w: e.permute(2, 1, 0).mean(),
    "words, time first": lambda n, x, e, t, m, y, w: (
        (F.embedding(y.T, n.table) - t.transpose(0, 1)).square().mean(1).sum()
    ),
    "data, time first": lambda n, x, e, t, m, y, w: (
        (t.transpose(0, 1) * n.table[0]).square().mean()
    ),
    "layers without a bias": lambda n, x, e, t, m, y, w: (
        F.linear(F.linear(x, n.body.weight).tanh(), n.head.weight).square().mean(0).sum()
    ),
    "stacked steps": lambda n, x, e, t, m, y, w: torch.stack(over_steps(n, x, t)).mean(),
    "added steps": lambda n, x, e, t, m, y, w: sum(over_steps(n, x, t)) / x.shape[1],
    "unlike terms": lambda n, x, e, t, m, y, w: (
        e[m].mean() + F.cross_entropy(n(x).flatten(0, 1), y.flatten()) + n(x)[:, 0].abs().mean()
    ),
    "a penalty": lambda n, x, e, t, m, y, w: e.mean() + 0.1 * (n.table.T @ n.table).square().sum(),
    "weights of tasks": lambda n, x, e, t, m, y, w: (
        e.mean() * (-n.table[0, 0]).exp() + n.table[0, 0] + e[m].mean() * n.table[0, 1].exp()
    ),
    "slices": lambda n, x, e, t, m, y, w: e[..., 1:].mean() + e[:, -1].sum(-1).mean(),
    "attention": lambda n, x, e, t, m, y, w: (
        (n(x) @ n(x).transpose(1, 2)).softmax(-1)[m].mean()
        + (n(x) @ t.transpose(1, 2)).square().mean()
    ),
    "positions of each step": lambda n, x, e, t, m, y, w: (n(x)[:, :, None] - n(x)[:, None]).mean(),
    "a norm of each sample": lambda n, x, e, t, m, y, w: (n(x) - t).flatten(1).norm(dim=1).mean(),
    "forces": lambda n, x, e, t, m, y, w: of_forces(n, x, t),
    "convolution": lambda n, x, e, t, m, y, w: (
        F.conv1d(x.transpose(1, 2), n.body.weight[:, :, None]).square().mean(0).sum()
    ),
}


def made(samples: int, time: int, columns: int, wide: int) -> Batch:
    g = torch.Generator().manual_seed(1000 * samples + 100 * time + 10 * columns + wide)
    mask = torch.rand(samples, time, generator=g) < torch.rand(samples, 1, generator=g)
    mask[:, 0] |= torch.arange(samples) % 2 == 0
    return (
        torch.randn(samples, time, wide, generator=g),
        torch.randn(samples, time, columns, generator=g),
        mask,
        torch.randint(columns, (samples, time), generator=g),
        torch.rand(samples, generator=g) + 0.1,
    )


def computed(loss: Loss, net: Net, x: Tensor, t: Tensor, *more: Tensor) -> Tensor:
    return loss(net, x, (net(x) - t).square(), t, *more)


def gradient(net: Net, loss: Tensor) -> Tensor:
    net.zero_grad()
    loss.backward()
    return torch.cat(
        [
            (torch.zeros_like(one) if one.grad is None else one.grad).flatten()
            for one in net.parameters()
        ]
    )


def together(loss: Loss, net: Net, shares: list[Batch]) -> Tensor:
    """The mean of the shares' gradients, weighed as ranks do it."""
    losses = [computed(loss, net, *share) for share in shares]
    terms = [
        unique(terms_of(one, len(share[0]))) for one, share in zip(losses, shares, strict=False)
    ]
    if all(map(is_sum, terms)):
        return sum(gradient(net, one) for one in losses)  # type: ignore[return-value]
    counts = [[float(term.number) for term in each] for each in terms]  # type: ignore[arg-type]
    means = [sum(column) / len(shares) for column in zip(*counts, strict=True)]
    for each, numbers in zip(terms, counts, strict=False):
        for term, number, mean in zip(each, numbers, means, strict=False):
            weigh(term, number / mean)
    return sum(gradient(net, one) for one in losses) / len(shares)


SIZES = st.sampled_from(("samples", "share", "ranks", "columns", "other"))


@settings(max_examples=25)
@given(
    ranks=st.integers(2, 3),
    share=st.integers(2, 4),
    columns=st.integers(2, 5),
    ragged=st.booleans(),
    sizes=st.tuples(SIZES, SIZES, SIZES),
    names=st.lists(st.sampled_from(sorted(LOSSES)), min_size=8, max_size=8),
)
def test_shares_have_together_the_gradient_of_the_batch(
    ranks: int, share: int, columns: int, ragged: bool, sizes: tuple[str, ...], names: list[str]
) -> None:
    samples = ranks * share - (ragged and share > 2)
    known = {"samples": samples, "share": share, "ranks": ranks, "columns": columns, "other": 3}
    batch = made(samples, *[known[one] for one in sizes])
    net = Net(batch[0].shape[-1], batch[1].shape[-1]).double()
    batch = tuple(one.double() if one.is_floating_point() else one for one in batch)
    parts = [
        tuple(map(Tensor.clone, part))
        for part in zip(*(b.tensor_split(ranks) for b in batch), strict=False)
    ]
    for name in names:
        whole = gradient(net, computed(LOSSES[name], net, *batch))
        apart = (together(LOSSES[name], net, parts) - whole).abs().max()
        assert float(apart) < 1e-9 * max(1.0, float(whole.abs().max())), name
