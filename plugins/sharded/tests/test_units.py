"""Options that are wrong, units, and owners: no ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchbus import session
from torchbus.errors import UsageError

from torchbus_sharded.wrapping import units
from torchbus_sharded.zero1 import Owners


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"auto_wrap_policy": "big"},
            "auto_wrap_policy='big': use 'auto' (repeated blocks), a set of module classes",
        ),
        ({"auto_wrap_policy": 0}, "auto_wrap_policy=0: use 'auto'"),
        ({"mixed_precision": "8"}, "mixed_precision='8' is unknown: use 'bf16', '16' or None"),
        ({"cpu_offload": 1}, "cpu_offload=1 is an int: it must be True or False"),
        (
            {"forward_methods": "loss"},
            "forward_methods='loss' is a str: it must be names of methods, such as ('loss',)",
        ),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(UsageError) as error:
        session(strategy="fsdp", **options)
    assert str(error.value).startswith(words)


def test_shard_gradients_is_true_or_false():
    with pytest.raises(UsageError, match="shard_gradients=2 is an int: it must be True or False"):
        session(strategy="ddp_sharded", shard_gradients=2)


class Block(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.Tanh())


def test_units():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Block(), Block()), nn.Linear(2, 200))
    blocks = [model[1][1], model[1][0]]
    assert units(model, "auto") == blocks == units(model, {Block})
    assert units(model, 300) == [model[2]] and units(model, None) == []


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


def test_lists_of_modules_are_no_units():
    """They are not called; where lists hold blocks that hold lists, a list is the outermost class
    that comes more than once.
    """
    model = nn.Sequential()
    model.flows = nn.ModuleList([Flow(), Flow()])
    assert units(model, "auto") == [model.flows[1], model.flows[0]]
    assert units(model, 12) == [model.flows[1], model.flows[0]]


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60), st.integers(1, 8))
def test_no_rank_has_more_than_its_part_and_the_largest_tensor(sizes, ranks):
    owners = Owners(ranks)
    owners.add(sizes)
    held = [
        sum(size for size, owner in zip(sizes, owners.of, strict=True) if owner == rank)
        for rank in range(ranks)
    ]
    assert sum(held) == sum(sizes) and max(held) <= sum(sizes) / ranks + max(sizes)
    before = list(owners.of)
    owners.add([5])
    assert owners.of[:-1] == before
