"""Plugins that surround the forward of one class, and end in any order."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torchbus.patches.modules import Surround


class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_each_is_gone_once_it_is_closed(order):
    original, model, called = vars(Net)["forward"], Net(2, 2), []

    def around(name):
        return Surround(
            lambda model, forward, args, kwargs: (called.append(name), forward(*args, **kwargs))[1]
        )

    surrounds = [around(name) for name in range(3)]
    for surround in surrounds:
        surround.add(model)
    left = {0, 1, 2}
    for name in order:
        called.clear()
        model(torch.ones(1, 2))
        assert called == sorted(left, reverse=True)
        surrounds[name].close()
        left.remove(name)
    assert vars(Net)["forward"] is original


def test_others_of_the_class_are_left_alone():
    called = []
    surround = Surround(
        lambda model, forward, args, kwargs: (called.append(model), forward(*args, **kwargs))[1]
    )
    one, other = Net(2, 2), Net(2, 2)
    surround.add(one)
    other(torch.ones(1, 2))
    assert not called
    surround.close()
