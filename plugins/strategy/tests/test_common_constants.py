"""What ranks compare of losses and optimizers, and how two of them are told apart."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchbus_strategy.checks import constants, hyperparameters
from torchbus_strategy.checks.constants import suspicious


def test_which_constants_are_read() -> None:
    x = torch.ones(4, 3, requires_grad=True)
    loss = (
        0.3 * x.mean() / 7
        - torch.add(x.sum(), x.mean(), alpha=0.5) * torch.tensor(2.0)
        + x.mean() * x.sum()
    )
    assert sorted(set(constants.read(loss)[1])) == [0.3, 0.5, 1.0, 2.0, 7.0]
    loss.backward()
    assert constants.read(loss) == ((), ())
    assert constants.read(torch.ones(())) == ((), ())


def test_weights_of_elements_are_read_where_each_has_that_of_its_label() -> None:
    targets = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    logits = torch.zeros(2, 2, requires_grad=True)
    of_elements = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")

    def both(weights: Tensor) -> list[tuple[float, ...]]:
        inside = F.binary_cross_entropy_with_logits(logits, targets, weights)
        return [constants.read(loss)[1] for loss in (inside, (of_elements * weights).mean())]

    assert both(torch.where(targets == 1, 0.75, 0.25)) == [(1.25,), (1.25,)]  # 0.75 + 2 * 0.25
    assert both(torch.where(targets == 1, 0.5, 0.25)) == [(1.0,), (1.0,)]
    assert both(torch.tensor([[0.75, 0.25], [0.5, 0.25]])) == [(), ()]  # each has another one


def test_a_divisor_of_a_sum_is_told_from_other_factors() -> None:
    x = torch.ones(4, requires_grad=True)
    kinds, _ = constants.read(0.5 * x.sum() / 1.5 + x.mean() / 1.5)
    assert kinds[1:] == ("DivBackward0 of a sum", "DivBackward0", "MulBackward0")


def test_weights_of_a_mixture_may_differ() -> None:
    assert suspicious([(0.3, 0.6), (0.7, 0.4), (1.0, 1.0)]) == [(), (), ()]
    assert suspicious([(0.3, 0.6), (0.7, 0.5), (2.0, 2.0)]) == [(0.3, 0.6), (0.7, 0.5), ()]


def test_a_search_is_named(monkeypatch) -> None:
    for name in ("optuna", "torchbus_optuna", "ray.tune"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert hyperparameters.searches() == ""
    monkeypatch.setitem(sys.modules, "optuna", sys)
    assert "pip install torchbus-optuna" in hyperparameters.searches()
    monkeypatch.setitem(sys.modules, "torchbus_optuna", sys)
    assert hyperparameters.searches() == ""


def test_settings_are_the_same_in_every_process() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0] |= {
        "made_by": lambda: 0,
        "owner": object(),
        "mixed": {"a": [1, object()]},
        "where": torch.zeros(3),
    }
    first = hyperparameters.of_optimizer(optimizer) | hyperparameters.of_model(model)
    optimizer.param_groups[0] |= {
        "made_by": lambda: 1,
        "owner": object(),
        "mixed": {"a": [1, object()]},
        "lr": 0.1 * (1 + 1e-9),
    }
    again = hyperparameters.of_optimizer(optimizer) | hyperparameters.of_model(model)
    hyperparameters.compare([first, again])
    assert hyperparameters.digest(first) == hyperparameters.digest(again)
