"""Blocks compute twice in training and once in evaluation, with equal numbers and names."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchbus import session
from torchbus.errors import UsageError

from torchbus_testing.state import assert_torch_unchanged, torch_state

DTYPE = torch.float64


class Block(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3)

    def forward(self, x, scale=1.0):
        Block.calls += 1
        return x + self.drop(torch.relu(self.norm(self.linear(x)))) * scale


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(6, 1)).double()


def train(model: nn.Module) -> tuple[dict[str, torch.Tensor], int]:
    """Return the model's state after three steps, and the number of block calls in the last one."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        Block.calls = 0
        optimizer.zero_grad()
        model(torch.randn(8, 6, dtype=DTYPE)).square().mean().backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}, Block.calls


@pytest.mark.parametrize("given", ["auto", {Block}, [Block]], ids=str)
def test_same_numbers_names_and_statistics(given):
    alone, once = train(net())
    before = torch_state()
    with session(activation_checkpointing=given, strategy=None) as s:
        model = net()
        ours, twice = train(model)
        text = s.explain()
    assert_torch_unchanged(before)
    assert list(ours) == list(alone) and all(torch.equal(ours[name], alone[name]) for name in alone)
    assert (once, twice) == (2, 4)
    assert int(ours["0.norm.num_batches_tracked"]) == 3
    assert "activations 2 blocks are computed again in backward: Block" in text


def test_once_in_evaluation():
    with session(activation_checkpointing="auto", strategy=None):
        model = net()
        torch.optim.SGD(model.parameters(), lr=0.1)
        Block.calls = 0
        with torch.no_grad():
            model.eval()(torch.randn(4, 6, dtype=DTYPE))
        assert Block.calls == 2


def test_memory_is_given_back():
    def kept(model: nn.Module) -> int:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: (sizes.append(tensor.numel()), tensor)[1], lambda tensor: tensor
        ):
            model(torch.randn(512, 6, dtype=DTYPE))
        return sum(sizes)

    with session(activation_checkpointing={Block}, strategy=None):
        model = net()
        torch.optim.SGD(model.parameters(), lr=0.1)
        with_it = kept(model)
    assert with_it < kept(model) / 3


@pytest.mark.parametrize("given", ["all", {1}, set(), Block, {"Block"}], ids=str)
def test_wrong_options(given):
    with pytest.raises(UsageError, match="use a set of module classes, such as {Block}, or 'auto'"):
        session(activation_checkpointing=given, strategy=None)
