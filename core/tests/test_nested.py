"""The walker over nested batches keeps every container's class and attributes."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchbus.tree import leaves, map_tensors

Pair = namedtuple("Pair", ["x", "y"])


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    label: str
    made: int = field(init=False, default=3)


@dataclass
class Slots:
    __slots__ = ("x",)
    x: Any


ONE = torch.ones(1)
SHAPES = {
    "namedtuple": Pair(ONE, [ONE, 2]),
    "defaultdict": defaultdict(list, x=ONE),
    "OrderedDict": OrderedDict(b=ONE, a=ONE),
    "read-only mapping": MappingProxyType({"x": ONE}),
    "frozen dataclass": Frozen(ONE, "cat"),
    "dataclass with slots": Slots((ONE, {"y": ONE})),
}


@pytest.mark.parametrize("value", SHAPES.values(), ids=SHAPES)
def test_classes_and_attributes_stay(value: Any) -> None:
    doubled = map_tensors(value, lambda tensor: tensor * 2)
    assert type(doubled) is type(value) and doubled is not value
    tensors = [leaf for leaf in leaves(doubled) if isinstance(leaf, Tensor)]
    assert tensors and all(tensor.item() == 2 for tensor in tensors)
    assert next(leaf for leaf in leaves(value) if isinstance(leaf, Tensor)).item() == 1
    assert getattr(doubled, "default_factory", None) is getattr(value, "default_factory", None)


def test_a_field_that_no_constructor_takes_stays() -> None:
    value = Frozen(ONE, "cat")
    object.__setattr__(value, "made", 7)
    assert map_tensors(value, torch.neg).made == 7


NESTED = st.recursive(
    st.one_of(st.integers(), st.text(max_size=2), st.builds(lambda: torch.zeros(1))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.integers(), inner, max_size=3),
        st.builds(Slots, inner),
    ),
    max_leaves=12,
)


@given(NESTED)
def test_what_does_not_change_is_the_same_object(value: Any) -> None:
    assert map_tensors(value, lambda tensor: tensor) is value


@given(NESTED)
def test_the_order_of_leaves_is_that_of_the_walk(value: Any) -> None:
    seen: list[Tensor] = []
    map_tensors(value, lambda tensor: (seen.append(tensor), tensor)[1])
    assert [id(one) for one in seen] == [
        id(leaf) for leaf in leaves(value) if isinstance(leaf, Tensor)
    ]
