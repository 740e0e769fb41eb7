"""What a checkpoint can hold."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections import namedtuple
from fractions import Fraction
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchbus import session
from torchbus.errors import UsageError

from torchbus_checkpoint.disk import tensors
from torchbus_checkpoint.state.jsonable import from_json
from torchbus_checkpoint.state.plain import decode, encode


def written_and_read(value: Any) -> Any:
    with tempfile.TemporaryFile() as file:
        tensors.write(encode(value, "it"), file)
        file.flush()
        with tensors.reading(file) as reader:
            return decode(reader.content())


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.binary(),
        lambda inner: (
            st.lists(inner)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(), inner)
            | st.sets(st.integers())
        ),
        max_leaves=20,
    )
)
def test_plain_values(value: Any) -> None:
    assert written_and_read(value) == value


class Row(NamedTuple):
    epoch: int
    parts: list[Any]


def test_a_namedtuple_is_one_again_if_the_script_has_its_class() -> None:
    row = Row(1, [torch.ones(2), Row(2, [])])
    read = written_and_read(row)
    assert type(read) is Row and type(read.parts[1]) is Row and read.epoch == 1
    written = {**encode(row, "it"), "torchbus namedtuple": "builtins:open"}
    assert type(decode(written)) is tuple, "a checkpoint that names something else runs nothing"
    local = namedtuple("local", "one")
    with pytest.raises(UsageError, match="holds a"):
        encode(local(1), "it")


@pytest.mark.parametrize("begin", [(0,), (5,), (5, 2), (0.5, 0.25)])
def test_a_counter_counts_on(begin: tuple[Any, ...]) -> None:
    counter = itertools.count(*begin)
    next(counter)
    read = written_and_read(counter)
    assert [next(read) for _ in range(3)] == [next(counter) for _ in range(3)]


@pytest.mark.parametrize("begin", [Fraction(1, 2), float("inf"), torch.tensor(1)], ids=str)
def test_a_counter_of_other_numbers_is_left_out(begin: Any) -> None:
    with pytest.raises(UsageError, match=r"itertools\.count, which a checkpoint can't hold"):
        encode(itertools.count(begin), "the loop")


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64", "float16", "float64"],
)
def test_arrays(dtype: str) -> None:
    array = np.arange(-3, 3).astype(dtype).reshape(2, 3).T
    read = written_and_read({"it": array})["it"]
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)


def test_what_is_not_plain_is_refused_by_name() -> None:
    with (
        session() as s,
        pytest.raises(UsageError, match=r"s.register\('mine'\) holds a builtins.object"),
    ):
        s.register("mine", _Odd())
        s.save("nowhere")


class _Odd:
    def state_dict(self) -> Any:
        return {"it": object()}

    def load_state_dict(self, state: Any) -> None:
        pass


MANY = [number * (2**61 - 1) for number in range(101)]
"""All of them have the hash 0: a dict of a million would take days."""


@pytest.mark.parametrize(
    "made_up",
    [
        {"dict": [[number, 0] for number in MANY]},
        {"set": MANY},
        {"dict": [["torchbus set", MANY]]},
        {"dict": [["torchbus ndarray", None], ["torchbus dtype", "M8[ns]"]]},
    ],
)
def test_what_nothing_writes_is_refused(made_up: Any) -> None:
    with pytest.raises(ValueError, match="one hash|an array of datetime64"):
        read = from_json(made_up, lambda kind, _: kind)
        decode(
            {key: torch.zeros(1).double() if item is None else item for key, item in read.items()}
        )


def test_a_forged_namedtuple_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some packages import their modules when an attribute is read."""
    lazy, read = ModuleType("lazy"), list[str]()
    monkeypatch.setattr(lazy, "__getattr__", read.append, raising=False)
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    assert decode({"torchbus namedtuple": "lazy:anything", "torchbus fields": [1]}) == (1,)
    assert not read
