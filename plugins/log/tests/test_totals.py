"""Running totals, cut into ranks and batches in any way, equal numpy over everything."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchbus_log.exchange import LoggedValue, lines, merged, numbers_of
from torchbus_log.totals import Total

NUMBERS = st.floats(-1e6, 1e6, width=32)
BATCHES = st.lists(st.lists(NUMBERS, min_size=0, max_size=7), min_size=1, max_size=150)
REDUCTIONS = {"mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min}


def of_rank(batches: list[list[float]], reduce: str, on_device: bool) -> tuple[float, float]:
    """What a rank tells that has logged each batch's own mean (sum, maximum, minimum)."""
    total = Total(reduce)
    for batch in batches:
        value = float(REDUCTIONS[reduce](np.array(batch))) if batch else math.nan
        total.add(
            torch.tensor(value, dtype=torch.float64) if on_device else value, float(len(batch))
        )
    record = LoggedValue("x", 0, None, total.parts(), 1.0, total.weight, reduce, True, False)
    return numbers_of([record])[0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(BATCHES, min_size=1, max_size=4), st.sampled_from(sorted(REDUCTIONS)), st.booleans()
)
def test_any_division_gives_the_value_over_all_samples(ranks, reduce, on_device):
    everything = np.array(
        [value for batches in ranks for batch in batches for value in batch], dtype=np.float64
    )
    got = merged(reduce, [of_rank(batches, reduce, on_device) for batches in ranks])
    if not len(everything):
        assert got == 0.0 if reduce == "sum" else math.isnan(got)
    else:
        expected = REDUCTIONS[reduce](everything)
        assert math.isclose(
            got,
            expected,
            rel_tol=1e-9,
            abs_tol=1e-9 * max(1.0, np.abs(everything).max()) * len(everything),
        )


def test_few_tensors_are_kept_however_many_were_added():
    total = Total("mean")
    for index in range(1000):
        total.add(torch.tensor(float(index)), 2.0)
        total.add(float(index), 2.0)
    assert len(total.parts()) <= 2 and total.weight == 4000.0
    assert (
        merged(
            "mean",
            numbers_of(
                [LoggedValue("x", 0, None, total.parts(), 1.0, total.weight, "mean", True, False)]
            ),
        )
        == 499.5
    )


def test_sums_are_in_float64():
    total = Total("sum")
    for _ in range(3):
        total.add(torch.tensor(2.0**24), 1.0)
        total.add(torch.tensor(1.0), 1.0)
    assert numbers_of(
        [LoggedValue("x", 0, None, total.parts(), 1.0, total.weight, "sum", True, False)]
    ) == [(3 * 2.0**24 + 3, 6.0)]


def test_mixed_dtypes_and_numbers_come_to_the_host_in_their_order():
    values = [
        1.5,
        torch.tensor(2, dtype=torch.int64),
        torch.tensor(3.5, dtype=torch.bfloat16),
        True,
        torch.tensor(4.0),
    ]
    records = [
        LoggedValue(str(place), 0, None, (value,), 1.0, 1.0, "sum", False, False)
        for place, value in enumerate(values)
    ]
    assert [total for total, _ in numbers_of(records)] == [1.5, 2.0, 3.5, 1.0, 4.0]


def test_a_name_that_comes_twice_at_one_step_begins_a_new_line():
    records = [
        LoggedValue(name, step, None, (), 1.0, 1.0, "sum", False, False)
        for name, step in (("a", 2), ("b", 1), ("a", 2), ("b", 2))
    ]
    told = [(line.step, line.metrics) for line in lines(records, [1.0, 2.0, 3.0, 4.0])]
    assert told == [(1, {"b": 2.0}), (2, {"a": 1.0, "b": 4.0}), (2, {"a": 3.0})]
