"""Plugins that surround the forward of one class, and end in any order."""

from __future__ import annotations

import copy
import itertools
import types

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


def counting(called):
    def around(model, forward, args, kwargs):
        called.append(model)
        return forward(*args, **kwargs)

    return around


def test_a_call_of_the_parents_forward_is_not_surrounded_again():
    class Sub(Net):
        def forward(self, x):
            return super().forward(x) + 1

    called, parent, child = [], Net(2, 2), Sub(2, 2)
    surround = Surround(counting(called))
    surround.add(parent)
    surround.add(child)
    child(torch.ones(1, 2))
    parent(torch.ones(1, 2))
    assert called == [child, parent]
    surround.close()


@pytest.mark.parametrize("adds_copy", [False, True])
def test_a_copy_of_a_model_with_a_method_of_its_own_computes_with_its_own_weights(adds_copy):
    model, called = nn.Linear(1, 1, bias=False), []
    local = types.MethodType(lambda self, x: x @ self.weight, model)
    model.forward = local
    surround = Surround(counting(called))
    surround.add(model)
    other = copy.deepcopy(model)
    if adds_copy:
        surround.add(other)
    with torch.no_grad():
        model.weight.fill_(5.0)
        other.weight.fill_(2.0)
    assert other(torch.ones(1, 1)).item() == 2.0
    assert model(torch.ones(1, 1)).item() == 5.0
    assert called == ([other, model] if adds_copy else [model])
    surround.close()
    assert model.forward is local and other(torch.ones(1, 1)).item() == 2.0
