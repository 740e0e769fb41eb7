"""Optimizers of the script's own classes in a run that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session


class Momentum(torch.optim.Optimizer):
    """Counts its steps in an attribute, and by parameter in a dict whose keys are tensors."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.calls = 0
        self.seen: dict[torch.Tensor, int] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.calls += 1
        for group in self.param_groups:
            for one in group["params"]:
                self.seen[one] = self.calls
                state = self.state[one]
                state["mean"] = state.get("mean", torch.zeros_like(one)).mul(0.9).add(one.grad)
                one.sub_(group["lr"] / self.calls * state["mean"])


class Sharpness(torch.optim.Optimizer):
    """Sharpness-aware minimization (arXiv 2010.01412): steps by another optimizer."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.inner = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def ascend(self) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one]["before"] = one.detach().clone()
                one.add_(one.grad, alpha=0.05)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                one.copy_(self.state[one]["before"])
        self.inner.step()


def train(kind: type[torch.optim.Optimizer], epochs: Any, cut: int = 0) -> list[float]:
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    model = torch.nn.Linear(3, 1)
    optimizer: Any = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    steps = 0
    for _ in epochs:
        for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True):
            optimizer.zero_grad()
            mse_loss(model(a), b).backward()
            if hasattr(optimizer, "ascend"):
                optimizer.ascend()
                optimizer.zero_grad()
                mse_loss(model(a), b).backward()
            optimizer.step()
            steps += 1
            if steps == cut:
                raise InterruptedError
    return [*model.weight.flatten().tolist(), float(getattr(optimizer, "calls", 0))]


@pytest.mark.parametrize("kind", [Momentum, Sharpness])
@pytest.mark.parametrize("cut", [4, 5, 7])
def test_an_interrupted_run_goes_on_bit_for_bit(
    tmp_path: Path, kind: type[torch.optim.Optimizer], cut: int
) -> None:
    whole = train(kind, range(3))
    with (
        pytest.raises(InterruptedError),
        session(strategy=None, checkpoint=tmp_path, every_n_steps=2),
    ):
        train(kind, range(3), cut)
    with session(strategy=None, checkpoint=tmp_path, every_n_steps=2):
        assert train(kind, range(3)) == whole
