"""What a loss's graph tells of what it is a mean of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchbus import session
from torchbus.errors import UsageError
from torchbus.world import Share

from torchbus_strategy.batches import TrackedBatch
from torchbus_strategy.loss.reading import is_sum, terms_of
from torchbus_strategy.loss.terms import ALL, COUNTED, NORM, SLOTS, WEIGHT, Count, Term
from torchbus_strategy.loss.weights import LossWeights
from torchbus_strategy.multi_loader import sources

X = torch.randn(4, 3, requires_grad=True) * torch.ones(4, 3)
Y = torch.tensor([0, 1, -100, 2])
ONE_LABEL = torch.tensor([-100, 1, -100, -100])
MASK = Y >= 0
NUMBERS = torch.tensor([0.5, 1.0, 3.0, 0.1])
TABLE = torch.arange(12.0).view(4, 3)
PLACES = (TABLE % 5 > 0).float()
W = torch.tensor([0.3, 0.7])
V = torch.nn.Parameter(torch.ones(2))
P = torch.nn.Parameter(torch.ones(5))
Q = torch.nn.Parameter(torch.ones(3, 2))
W2 = torch.nn.Parameter(torch.ones(2, 2))


def losses() -> Tensor:
    return torch.stack([X.mean(), X[:2].mean()])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda: F.cross_entropy(X, Y), [("mean", 3)]),
        (lambda: F.cross_entropy(X, Y, weight=torch.tensor([1.0, 2.0, 4.0])), [("mean", 7)]),
        (lambda: F.cross_entropy(X, Y, label_smoothing=0.1), [("mean", 3), ("mean", 3 * 3 / 0.1)]),
        (lambda: F.cross_entropy(X, X.detach().softmax(1)), [("mean", 4)]),
        (lambda: F.cross_entropy(X.view(2, 3, 2), Y.view(2, 2)), [("mean", 3)]),
        (lambda: F.cross_entropy(X, Y, reduction="sum"), [("sum", None)]),
        (lambda: F.cross_entropy(X, Y, reduction="none")[MASK].mean(), [("mean", 3)]),
        (lambda: (X.sum(1) * MASK).sum() / MASK.sum(), [("mean", 3)]),
        (lambda: 3 * (X.sum(1) * MASK).sum() / 6, [("mean", 2)]),
        (lambda: X.sum() * (1 / MASK.sum()), [("mean", 3)]),
        (lambda: F.mse_loss(X, torch.zeros(4, 3)), [("mean", 4)]),
        (lambda: F.mse_loss(X, torch.zeros(4, 3), reduction="sum"), [("sum", None)]),
        (lambda: X.t().square().mean(), [("mean", 4)]),  # samples in another dimension
        (lambda: F.mse_loss(X.t(), torch.zeros(3, 4)), [("mean", 4)]),
        (lambda: F.smooth_l1_loss(torch.zeros(3, 4), X.t()), [("mean", 4)]),
        (lambda: 1 - X.mean().view(1).squeeze(), [("mean", 4)]),
        (lambda: torch.stack([X.mean(), X[:2].mean()]).mean(), [("mean", 4), ("mean", 2)]),
        (lambda: (W * losses()).sum(), [("mean", 4), ("mean", 2)]),
        (lambda: (losses() / W + V).mean(), [("mean", 4), ("mean", 2)]),
        (lambda: losses()[1] * 3 + losses()[-2], [("mean", 2), ("mean", 4)]),
        (lambda: torch.dot(W, losses()), [("mean", 4), ("mean", 2)]),
        (
            lambda: torch.cat([X.mean().view(1), X.sum().view(1) / 8]).sum(),
            [("mean", 4), ("mean", 8)],
        ),
        (lambda: (torch.tensor([0.0, 2.0]) * losses()).sum(), [("mean", 2)]),
        (lambda: (V.exp() * losses()).sum(), [("mean", 4), ("mean", 2)]),
        (lambda: (torch.stack([V[0], -V[1]]) * losses()).sum(), [("mean", 4), ("mean", 2)]),
        (lambda: (P[0].exp() * losses()).sum(), [("mean", 4), ("mean", 2)]),
        (lambda: (losses() * losses()).sum(), [("nonlinear", None)]),
        (lambda: (W / losses()).sum(), [("nonlinear", None)]),
        (lambda: (X[0, :2] * losses()).sum(), [("nonlinear", None)]),
        (lambda: (X.mean(1) * W.sum()).sum(), [("sum", None)]),
        # weight decay is alike on all ranks
        (lambda: X.mean() + 0.1 * P.square().sum() + P.abs().mean(), [("mean", 4)]),
        (lambda: X.mean() + (TABLE[:, 0].view(2, 2) * (W2 - 1) ** 2).sum(), [("mean", 4)]),
        (lambda: X.mean() + F.mse_loss(P, torch.zeros(5)) + (P - 1).norm() ** 2, [("mean", 4)]),
        (lambda: X.mean() + torch.cat([P - 1, W2.view(-1)]).abs().sum(), [("mean", 4)]),
        (lambda: X.mean() + (Q.t() @ Q - torch.eye(2)).pow(2).sum(), [("mean", 4)]),
        (lambda: X.mean() + (P - TABLE[:, :1]).pow(2).sum(), [("mean", 4), ("sum", None)]),
        (lambda: X.mean() + (P * 2 - torch.ones(4, 5)).pow(2).mean(), [("mean", 4), ("mean", 4)]),
        (lambda: X.mean() + 0 * X.sum(), [("mean", 4)]),
        (lambda: X.sum(), [("sum", None)]),
        (lambda: X.norm() ** 2, [("sum", None)]),
        (lambda: 0.5 * X.norm(2).pow(2) / 4, [("mean", 8)]),
        (lambda: X.norm() ** 3 + X.norm(), [("nonlinear", None)] * 2),
        (lambda: (torch.zeros(1) + F.mse_loss(X, X.detach())).sum(), [("mean", 4)]),
        (lambda: torch.stack([X.sum()]).mean(), [("sum", None)]),
        (lambda: X.square().mean().sqrt(), [("nonlinear", None)]),
        (lambda: X.mean() * X.square().mean(), [("nonlinear", None)]),
        (lambda: 1 - (X * X).mean() / (X * X).sum(), [("nonlinear", None)]),
        (lambda: X.sum(1).topk(2).values.mean(), [("nonlinear", None)]),
        (lambda: X.sum(1).max() + X.var(0).sum(), [("nonlinear", None)] * 2),
        (lambda: X.amax(1).mean() + P.max(), [("mean", 4)]),
        (lambda: X.sum(1) @ (NUMBERS / NUMBERS.sum()), [("normalised", None)]),
        (lambda: (X.sum(1) * NUMBERS / NUMBERS.mean()).mean(), [("mean", 4)]),
        (lambda: (X.sum(1) * (NUMBERS / NUMBERS.mean())).mean(), [("normalised", None)]),
        (lambda: (X * (TABLE / TABLE.sum())).sum(), [("normalised", None)]),
        (lambda: (X.abs() * (PLACES / PLACES.mean())).mean(), [("normalised", None)]),
        (
            lambda: torch.where(X > 9, 0.0, X.abs() * (PLACES / PLACES.mean())).mean(),
            [("normalised", None)],
        ),
        (lambda: (X.abs() * PLACES).mean(), [("mean", 4)]),
        (lambda: (X * (TABLE / 7)).mean(), [("mean", 4)]),
        (lambda: (X * (TABLE % 3)).mean(), [("mean", 4)]),
        (lambda: (X.sum(1) * torch.tensor([2.0, 0.0, 0.0, 2.0])).mean(), [("mean", 4)]),
        (lambda: (X.sum(1) * MASK).sum(), [("sum", None)]),
        # a task's weight that is a parameter
        (lambda: (-P[0]).exp() * X.mean() + P[0], [("mean", 4)]),
        (lambda: X[MASK].mean() / (2 * P[1] ** 2) + P[1].log(), [("mean", 3)]),
        (lambda: (P - 1).norm() + (Q.t() @ Q).norm(), []),
        (lambda: P[0] * (X.mean() + X[:2].mean()), [("unknown", None)]),
        (lambda: X.sum() / P.sum(), [("unknown", None)]),
    ],
)
def test_terms(loss: Any, expected: list[tuple[str, float | None]]) -> None:
    found = [(term.reduction, term.number) for term in terms_of(loss(), rows=4)]
    assert found == [
        (kind, number if number is None else pytest.approx(number)) for kind, number in expected
    ]


def test_a_compiled_function_hides_its_graph() -> None:
    class CompiledFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sum()

    assert terms_of(CompiledFunction.apply(X)) == [Term("hidden")]  # type: ignore[no-untyped-call]
    with (
        session() as s,
        pytest.warns(UserWarning, match="the loss comes out of a compiled function"),
    ):
        LossWeights(s._context).of(CompiledFunction.apply(X))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda: X.square().mean().sqrt(), "not a mean over samples but a function of such means"),
        (lambda: X.mean() + F.relu(X.mean() - 1), "not a mean over samples but a function"),
        (lambda: X.mean() * 4, "the loss is a mean multiplied by 4"),
        (lambda: F.cross_entropy(X, Y) + X.square().cumsum(0)[-1, 0], "counts 3 things for 4"),
    ],
)
def test_what_no_weight_can_mend_is_said_once(loss: Any, words: str) -> None:
    with session() as s, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        s._context.share = Share(1.0, 0, (), 4)
        losses = LossWeights(s._context)
        for _ in range(5):
            losses.of(loss())
    assert len(said) == 1 and words in str(said[0].message)


@pytest.mark.parametrize(
    "loss",
    [
        lambda: X.mean() + (Q.t() @ Q - torch.eye(2)).norm() + P.square().sum().sqrt(),
        lambda: X.mean() * 3,
        lambda: (-P[0]).exp() * F.cross_entropy(X, Y) + P[0],
    ],
)
def test_what_is_exact_is_not_said(loss: Any) -> None:
    with session() as s:  # a warning is an error here
        s._context.share = Share(1.0, 0, (), 4)
        losses = LossWeights(s._context)
        for _ in range(5):
            losses.of(loss())


def told(counts: list[Any]) -> list[float]:
    """The means over ranks of what they tell."""
    return [
        sum(float(number) for number in numbers) / len(counts)
        for numbers in zip(*[count.to_metadata() for count in counts], strict=True)
    ]


def test_two_ranks_agree_on_what_to_divide_by() -> None:
    with session() as s:
        s._context.share = Share(1.0, 0, (), 4)
        ranks = [LossWeights(s._context), LossWeights(s._context)]
        counts = [
            ranks[0].of(F.cross_entropy(X, Y)),
            ranks[1].of(F.cross_entropy(X, Y.clamp(min=0))),
        ]
        assert [count.counted for count in counts] == [True, False]
        scales = [rank.resolve(told(counts)) for rank in ranks]
        assert scales[0] == scales[1]
        weights = [float(count.weight) * scales[0].gradient for count in counts]  # type: ignore[union-attr]
        assert weights == pytest.approx([2 * 3 / 7, 2 * 4 / 7])


def test_nothing_is_divided_where_all_count_alike() -> None:
    with session() as s:
        s._context.share = Share(1.0, 0, (), 4)
        losses = LossWeights(s._context)
        count = losses.of(X.mean())
        assert (count.weight, count.counted, losses.resolve(told([count]))) == (1.0, False, None)


def test_a_loss_that_nobody_counts_is_refused_under_tokens() -> None:
    with session() as s, pytest.raises(UsageError, match="does not show what it is a mean over"):
        LossWeights(s._context, "tokens").of(X.square().mean().sqrt())


def test_a_constant_that_is_no_number_of_samples_is_said() -> None:
    with session() as s:
        s._context.share = Share(1.0, 0, (), 4)
        losses = LossWeights(s._context)

        def step() -> None:
            losses.resolve(told([losses.of(X.sum() / 1000)] * 2))

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                step()
        with pytest.warns(
            UserWarning,
            match=r"a sum divided by 1000 on every rank, .* \(4\) nor of all ranks' \(4\)",
        ):
            for _ in range(2):
                step()


def test_a_divisor_below_one_is_no_factor() -> None:
    assert not is_sum(terms_of(X.sum() / 0.5))
    assert is_sum(terms_of(X.sum() * 2))


def step(*ranks: Tensor) -> list[Count]:
    """Each rank's loss, in one session that stands for all."""
    with session() as s:
        s._context.share = Share(1.0, 0, (), 4)
        losses = LossWeights(s._context)
        counts = [losses.of(loss) for loss in ranks]
        losses.resolve(told(counts))
        return counts


def test_a_sum_over_one_may_be_one_over_none() -> None:
    with pytest.warns(UserWarning, match=r"a sum divided by 1. If this 1 is max\(1, n\)"):
        step(X.square().sum() / 1, X.square().sum() / 3)


def last_may_hide_none(*losses_of: tuple[int, Tensor]) -> bool:
    """Of a rank's losses, each with the rows of its share."""
    with session() as s:
        losses = LossWeights(s._context)
        for rows, loss in losses_of:
            s._context.share = Share(1.0, 0, (), rows)
            count = losses.of(loss)
        return bool(count.may_be_clamped)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: 16 * F.kl_div(x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"),
        lambda x: x.square().sum() / len(x) / 2,
        lambda x: (x.sum(1) * MASK[: len(x)]).sum() / MASK[: len(x)].sum(),
    ],
)
def test_a_share_of_one_row_divides_by_one(loss: Callable[[Tensor], Tensor]) -> None:
    assert not last_may_hide_none((4, loss(X)), (1, loss(X[:1])))


def test_a_batch_of_one_image_may_have_one_box() -> None:
    one = X[:1].square().sum() / 1
    assert not last_may_hide_none((1, X.square().sum() / 4), (1, one))  # as many as are summed
    assert last_may_hide_none((1, X.square().sum() / 3), (1, one))


@pytest.mark.parametrize(
    ("loss", "is_clamped"),
    [
        (lambda: X.sum() / 1 + X[:0].square().sum() / 1, True),
        (lambda: X.sum() / 1 + X[:1].square().sum() / 1, False),
        (lambda: (X.sum(1) * (torch.arange(4) == 2)).sum() / 1, False),
        (lambda: bce(torch.zeros(4, 3)).sum() / 1, True),
        (lambda: F.cross_entropy(X, ONE_LABEL, reduction="none").sum() / 1, False),
        (lambda: bce(torch.eye(4, 3)[:, :1].expand(4, 3) * torch.eye(3)[0]).sum() / 1, False),
    ],
)
def test_what_a_sum_over_one_counts_is_in_its_graph(loss: Any, is_clamped: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine, _ = step(loss(), X.sum() / 3)
    assert (mine.is_clamped, mine.norm == 0.0) == (is_clamped, is_clamped)


def bce(targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(X, targets, reduction="none")


def test_terms_of_unlike_counts_are_said() -> None:
    with session() as s:
        losses = LossWeights(s._context)
        counts = [
            losses.of(F.cross_entropy(X, Y) + X.mean()),
            losses.of(F.cross_entropy(X, Y.clamp(min=0)) + X.mean()),
        ]
        with pytest.warns(
            UserWarning, match="the terms of the loss have become means over different counts"
        ):
            losses.resolve(told(counts))
        with pytest.warns(
            UserWarning, match="the terms of the loss are means over different counts"
        ):
            losses.resolve(told(counts), windows=True)


def test_slots() -> None:
    assert len({WEIGHT, NORM, COUNTED, ALL}) == 4 < SLOTS


def test_as_many_rows_as_another_batch_has_are_not_its_samples_if_a_mask_left_them() -> None:
    few, many = torch.randn(4, 3), torch.randn(6, 3)
    shares = (Share(0.8, count=8), Share(1.2, count=8))
    origin: Any = None
    used = [TrackedBatch(origin, 1, s, [x]) for x, s in zip((few, many), shares, strict=True)]
    copied = torch.nn.Linear(3, 1)(many.clone()).square()
    assert sources(terms_of(copied.mean()), used, 2) == [used[1]]
    assert sources(terms_of(copied[torch.arange(6) < 4].mean()), used, 2) is None
