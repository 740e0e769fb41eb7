"""What forward computes in, and what it returns."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torchbus import session

from .autocast_by_hand import batches, sgd


class Pair(NamedTuple):
    left: Tensor
    rest: dict[str, Any]


class Odd(nn.Module):
    """Returns a structure, and is used by another method than forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Pair:
        hidden = self.inner(x)
        self.seen.append(hidden.dtype)
        return Pair(hidden, {"list": [hidden, "word"], "index": torch.arange(2)})

    def loss(self, x: Tensor) -> Tensor:
        return self.inner(x).sum()


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_structures_return_as_float32(with_optimizer: bool) -> None:
    forward = Odd.forward
    with session(precision="bf16-mixed"):
        model = Odd()
        if with_optimizer:
            sgd(model.parameters())
        for _ in range(2):
            output = model(batches()[0])
            assert type(output) is Pair
            assert output.left.dtype == output.rest["list"][0].dtype == torch.float32
            assert output.rest["index"].dtype == torch.int64
        assert model.seen == [torch.bfloat16] * 2
        assert type(pickle.loads(pickle.dumps(copy.deepcopy(model)))) is Odd
    assert Odd.forward is forward
    assert not torch.is_autocast_enabled("cpu")


def test_a_submodule_called_alone_runs_under_autocast() -> None:
    with session(precision="bf16-mixed"):
        model = Odd()
        optimizer = sgd(model.parameters())
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            expected = model.inner(batches()[0]).float().sum()
        loss = model.loss(batches()[0])
        loss.backward()
        optimizer.step()
    assert torch.equal(loss, expected)


def test_a_forward_that_raises_leaves_no_autocast() -> None:
    class Broken(Odd):
        def forward(self, x: Tensor) -> Pair:
            raise KeyError

    with session(precision="bf16-mixed"):
        model = Broken()
        for _ in range(2):
            with pytest.raises(KeyError):
                model(batches()[0])
            assert not torch.is_autocast_enabled("cpu")
