"""Which dimension of a loss holds samples: by the graph, whatever sizes happen to be equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from torchbus_strategy.loss.reading import relates_samples, terms_of
from torchbus_strategy.loss.walks import are_apart, decomposes_samples

SIZES = st.sampled_from((2, 3, 4))  # so few that they collide


class Made:
    """Outputs of a batch: one time step, all, masked ones, time first. ``count``: of the mask."""

    def __init__(self, batch: int, time: int, columns: int) -> None:
        generator = torch.Generator().manual_seed(batch * 100 + time * 10 + columns)
        head = nn.Linear(5, columns)
        self.one = head(torch.randn(batch, 5, generator=generator))
        self.steps = head(torch.randn(batch, time, 5, generator=generator))
        self.mask = torch.rand(batch, time, generator=generator) < 0.7
        self.mask[0, 0] = True
        self.count = int(self.mask.sum())
        self.some = self.mask[:, 0]
        self.recurrent = nn.LSTM(5, columns)(torch.randn(time, batch, 5, generator=generator))[0]


def _l1(values: Tensor) -> Tensor:
    return F.l1_loss(values, torch.zeros_like(values))


MEANS: dict[str, Any] = {
    "plain": (lambda m: m.one.square().mean(), False),
    "mse": (lambda m: F.mse_loss(m.steps, torch.zeros_like(m.steps)), False),
    "masked": (lambda m: m.steps[m.mask].square().mean(), True),
    "masked mse": (lambda m: F.mse_loss(m.steps[m.mask], m.steps[m.mask].detach() + 1), True),
    "masked, of each step": (lambda m: m.steps.square().mean(-1)[m.mask].mean(), True),
    "transposed": (lambda m: m.one.t().square().mean(), False),
    "permuted": (lambda m: _l1(m.steps.permute(2, 1, 0)), False),
    "time first": (lambda m: m.recurrent.square().mean(), False),
    "time first, mse": (lambda m: F.mse_loss(m.recurrent, m.recurrent.detach() + 1.0), False),
    "time first, a head": (lambda m: nn.Linear(m.recurrent.shape[2], 4)(m.recurrent).mean(), False),
    "stacked steps": (lambda m: torch.stack(m.steps.unbind(1)).square().mean(), False),
    "in two steps": (lambda m: m.one.square().mean(0).sum(), False),
    "time first, some samples": (lambda m: m.recurrent[:, m.some].square().mean(), "some"),
    "transposed, some samples": (lambda m: _l1(m.steps.transpose(0, 1)[:, m.some]), "some"),
    "of the last step": (lambda m: m.steps[:, -1].square().mean(), False),
    "a view changed in place": (lambda m: m.steps.flatten(1).tanh_().square().mean(), False),
}


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, SIZES, st.sampled_from(sorted(MEANS)))
def test_a_mean_counts_its_samples_or_what_a_mask_leaves(
    batch: int, time: int, columns: int, kind: str
) -> None:
    loss, masked = MEANS[kind]
    made = Made(batch, time, columns)
    (term,) = terms_of(loss(made), rows=batch)
    counts = {True: made.count, False: batch, "some": int(made.some.sum())}
    assert (term.reduction, term.number) == ("mean", counts[masked])


SUMS: dict[str, Any] = {
    "plain": (lambda m: m.one.square().sum(), "sum"),
    "of all steps": (lambda m: m.steps.square().sum(1).sum(), "sum"),
    "over samples first": (lambda m: m.one.square().sum(0).sum(), "sum"),
    "over samples first, divided": (lambda m: m.one.square().sum(0).sum() / 7, "mean"),
    "divided inside": (lambda m: (m.one.square().sum(1) / 7).sum(), "mean"),
    "of a batch mean": (lambda m: (m.one.softmax(1).mean(0) - 0.1).square().sum(), "nonlinear"),
    "of a batch mean, times": (lambda m: 0.1 * m.one.mean(0).square().sum(), "nonlinear"),
    "of a covariance": (lambda m: (m.one.t() @ m.one).square().sum(), "nonlinear"),
}


@settings(max_examples=25, deadline=None)
@given(SIZES, SIZES, SIZES, st.sampled_from(sorted(SUMS)))
def test_a_sum_is_one_over_samples_or_not(batch: int, time: int, columns: int, kind: str) -> None:
    loss, expected = SUMS[kind]
    assert {term.reduction for term in terms_of(loss(Made(batch, time, columns)), batch)} == {
        expected
    }


def _each(losses: Any) -> Tensor:
    found = list(losses)
    return sum(found) / len(found)


TERMS: dict[str, Any] = {
    "a loop over samples": (lambda x, y, n: _each(map(F.mse_loss, map(n[0], x), y)), 1),
    "picked out of one forward": (lambda x, y, n: _each(z.square().mean() for z in n[0](x)), 1),
    "picked by slices": (
        lambda x, y, n: _each(z.square().mean() for z in n[0](x).tanh().split(1)),
        1,
    ),
    "tasks": (lambda x, y, n: _each(one(x.tanh()).square().mean() for one in n), 1),
    "two terms of each sample": (
        lambda x, y, n: (
            _each(z.square().mean() for z in n[0](x)) + _each(map(F.mse_loss, n[1](x), y))
        ),
        1,
    ),
    "tasks after a trunk": (
        lambda x, y, n: (lambda h: _each(one(h).square().mean() for one in n))(n[0](x).tanh()),
        0,
    ),
    "an ensemble": (lambda x, y, n: _each(F.mse_loss(one(x), y) for one in n), 0),
}


@settings(max_examples=30, deadline=None)
@given(SIZES, SIZES, st.sampled_from(sorted(TERMS)))
def test_terms_are_those_of_samples_or_share_them(batch: int, columns: int, kind: str) -> None:
    x, y = torch.randn(2, batch, columns, columns)
    loss, apart = TERMS[kind]
    found = terms_of(loss(x, y, [nn.Linear(columns, columns) for _ in range(batch)]), batch)
    assert not len(found) % batch
    assert are_apart(found, batch) == bool(apart)


def test_statistics_of_parameters_and_of_few_dimensions_are_read_without_error() -> None:
    weight, rows = nn.Parameter(torch.randn(5, 5)), nn.Linear(5, 5)(torch.randn(4, 5))
    solved = torch.linalg.solve(weight @ weight.T + torch.eye(5), rows.T).T
    assert terms_of((solved * rows).sum(1).mean(), 4)
    (term,) = terms_of(((rows.square().mean(0) * torch.exp(-weight[0])) + weight[0]).sum(), 4)
    assert (term.reduction, term.number) == ("mean", 4.0)


POINTS, SCALE = torch.randn(6, 2), nn.Parameter(torch.ones(1))


def kernel() -> Tensor:
    distances = (POINTS[:, None] - POINTS[None]).square().sum(-1)
    return torch.exp(-distances / SCALE**2) + torch.eye(6)


def matrices() -> Tensor:
    each = X[:, :4].view(8, 2, 2)
    return each @ each.transpose(1, 2) + torch.eye(2)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda: torch.linalg.cholesky(kernel()).diagonal().log().sum(), True),
        (lambda: POINTS[:, 0] @ torch.linalg.solve(kernel(), POINTS[:, 0]), True),
        (lambda: torch.logdet(kernel()), True),
        (lambda: (torch.linalg.inv(kernel()) @ POINTS).square().mean(), True),
        (lambda: torch.linalg.eigvalsh(kernel()).log().sum(), True),
        (lambda: torch.logdet(matrices()).mean(), False),
        (lambda: torch.linalg.cholesky(matrices()).square().mean(), False),
        (lambda: X.square().mean() - torch.slogdet(CODES.t() @ CODES + torch.eye(8))[1], False),
    ],
)
def test_a_matrix_over_samples_is_found(loss: Any, expected: bool) -> None:
    assert decomposes_samples(loss()) is expected


def test_a_norm_of_a_gradient_is_a_statistic_over_samples() -> None:
    layer = nn.Linear(6, 8)
    (made,) = torch.autograd.grad(
        layer(torch.randn(4, 6)).square().mean(), layer.weight, create_graph=True
    )
    assert [
        term.reduction for term in terms_of((torch.stack([made.norm()] * 2) - 1).abs().sum())
    ] == ["nonlinear"]


def test_two_deep_towers_are_compared() -> None:
    def tower() -> Tensor:
        layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(4)]
        return nn.Sequential(nn.Linear(4, 8), *layers)(torch.randn(6, 5, 4)).mean(1)

    similarity = F.normalize(tower(), dim=1) @ F.normalize(tower(), dim=1).T
    assert all(
        any(map(relates_samples, terms_of(F.cross_entropy(one, torch.arange(6)), 6)))
        for one in (similarity, similarity.T)
    )


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_advantages_that_are_standardised_in_the_batch_are_found(noise: float) -> None:
    advantages = torch.randn(8)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8) + noise
    ratio = nn.Linear(3, 1)(torch.randn(8, 3)).squeeze(1).exp()
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean()
    assert [term.reduction for term in terms_of(loss, 8)] == ["mean" if noise else "standardised"]


X, Z = nn.Linear(6, 8)(torch.randn(8, 6)), nn.Linear(6, 8)(torch.randn(8, 6))
H = nn.Linear(6, 8)(torch.randn(8, 10, 6))
CODES, LABELS = nn.Parameter(torch.randn(5, 8)), torch.arange(8) % 3


def similarity() -> Tensor:
    return F.normalize(X, dim=1) @ F.normalize(Z, dim=1).t()


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.cross_entropy(similarity(), torch.arange(8)),
        lambda: F.cross_entropy(similarity().t(), torch.arange(8)),
        lambda: F.mse_loss(X, Z) + F.relu(1 - X.var(0).sqrt()).mean(),
        lambda: F.relu(torch.cdist(X, Z).diagonal() - torch.cdist(X, Z).min(1).values).mean(),
        lambda: torch.exp(-torch.cdist(X, Z).square()).mean(),
        lambda: (X[:, 0] - torch.logcumsumexp(X[:, 0], 0)).mean(),
        lambda: ((X - X.mean(0)) / X.std(0)).square().mean(),
        lambda: X.softmax(0).square().mean(),
        lambda: (X[:, None] - X[None]).square().sum(-1).exp().mean(),
        lambda: F.logsigmoid(torch.einsum("id,jd->ij", X, Z)).sum() / len(X),
        lambda: F.logsigmoid(torch.einsum("id,jd->ij", X[:6], Z[:6])).sum() / 6,
        lambda: torch.einsum("id,jd->ij", nn.Linear(8, 3)(X), nn.Linear(8, 3)(Z)).exp().mean(),
        lambda: (X[:-1] * X[1:]).sum(1).mean(),  # neighbours
        lambda: (X[2:] - X[:-2]).square().mean(),
    ],
)
def test_a_loss_between_samples_is_found(loss: Any) -> None:
    assert any(map(relates_samples, terms_of(loss(), 8)))


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.cross_entropy(nn.BatchNorm1d(8)(X), LABELS),
        lambda: nn.TransformerEncoderLayer(8, 2, batch_first=True)(H).square().mean(),
        lambda: (torch.softmax(H @ H.transpose(1, 2), -1) @ H).square().mean(),
        lambda: nn.Sequential(nn.Conv1d(10, 4, 1), nn.InstanceNorm1d(4), nn.Flatten())(H).mean(),
        lambda: torch.cdist(X, CODES).min(1).values.mean(),  # a codebook
        lambda: (X[:, :, None] * Z[:, None, :]).square().mean(),  # a product in each sample
        lambda: (torch.rand(8) * X.square().mean(0)).sum(),  # weights of columns
        lambda: ((X - X.mean(1, keepdim=True)) / X.std(1, keepdim=True)).square().mean(),
        lambda: torch.stack([X, Z]).std(0).mean(),  # an ensemble
        lambda: (1 - F.cosine_similarity(X, Z)).mean(),
        lambda: (H[:, :, None] - H[:, None]).square().mean(),  # pairs of steps
        lambda: (X @ (CODES.tril().t() @ CODES.tril()) * X).sum(1).mean(),
        lambda: (X @ torch.linalg.inv(CODES.t() @ CODES + torch.eye(8))).square().mean(),
        lambda: -0.5 * (1 + X - Z.square() - X.exp()).sum(1).mean(),
        lambda: F.cross_entropy(F.linear(F.normalize(X), F.normalize(CODES)), LABELS),
        lambda: X.norm() ** 2 / len(X) + X.norm(2).pow(2),
        lambda: F.cross_entropy((X.bfloat16() @ CODES.bfloat16().t()).float(), LABELS),  # autocast
        lambda: F.cross_entropy(X @ CODES.clone().t(), LABELS),
        lambda: (X[:4] * X[4:]).sum(1).mean(),  # two views, side by side
        lambda: (X[:, 1:] - X[:, :-1]).abs().mean() + (H[:, 1:] * H[:, :-1]).mean(),
        lambda: (X[1:] * Z[:-1].detach()).mean(),
    ],
)
def test_what_is_computed_in_each_sample_is_none(loss: Any) -> None:
    assert not any(map(relates_samples, terms_of(loss(), 8)))
