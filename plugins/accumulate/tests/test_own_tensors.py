"""An optimizer that the loop makes for each batch takes its steps in the middle of a window too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.plugin import Unsupported

from torchbus_testing.models import parameter_values


def attack(model: nn.Module, x: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    delta = make(torch.zeros_like(x))
    optimizer = torch.optim.SGD([delta], lr=3.0)
    for _ in range(2):
        optimizer.zero_grad()
        (-model(x + delta).square().mean()).backward()
        optimizer.step()
    return x + delta.detach()


def train(batch_size: int, make: Callable[[Tensor], Tensor]) -> Tensor:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    # the last window of 8 has 4 samples
    data = DataLoader(TensorDataset(torch.randn(20, 3)), batch_size)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for (x,) in data:
            worst = attack(model, x, make)
            optimizer.zero_grad()
            model(worst).square().mean().backward()
            optimizer.step()
    return parameter_values(model)


@pytest.mark.share(2)
@pytest.mark.parametrize("make", [Tensor.requires_grad_, nn.Parameter])
def test_a_perturbation_of_the_batch(make: Callable[[Tensor], Tensor]) -> None:
    try:
        alone = train(8, make)
        with session(accumulate_grad_batches=4):
            ours = train(2, make)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (ours - alone).abs().max() < 1e-12


@pytest.mark.parametrize("adopts", [False, True])
def test_a_weight_with_as_many_rows_as_the_batch_is_asked_about(adopts: bool) -> None:
    x = torch.arange(8.0).reshape(4, 2)
    with session(accumulate_grad_batches=2) as s:
        for number, rows in enumerate(DataLoader(x, batch_size=2)):
            if number == 0:
                weight = torch.zeros(2, requires_grad=True)
                if adopts:
                    s.adopt(weight)
                optimizer = torch.optim.SGD([weight], lr=1.0)
            optimizer.zero_grad()
            (rows @ weight - 1).mean().backward()
            if not adopts and number == 1:
                with pytest.raises(Unsupported, match=r"call s\.adopt\(tensor\) before"):
                    optimizer.step()
                break
            optimizer.step()
    assert not adopts or torch.equal(weight.detach(), -x.mean(0))
