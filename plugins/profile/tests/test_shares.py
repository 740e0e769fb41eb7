"""Shares of time, compared with a count of each microsecond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchbus_profile.result import ProfilerSpan, shares

KINDS = ("compute", "ranks", "data")
spans = st.lists(st.tuples(st.integers(-5, 40), st.integers(-5, 40)).map(sorted), max_size=6)


@given(st.permutations(KINDS), st.fixed_dictionaries(dict.fromkeys(KINDS, spans)))
def test_each_microsecond_counts_for_the_first_kind_that_runs(order, found):
    kinds = {kind: [ProfilerSpan(*one) for one in found[kind]] for kind in order}
    counts = dict.fromkeys((*KINDS, "host"), 0)
    for time in range(30):
        runs = (kind for kind in order if any(s <= time < e for s, e in kinds[kind]))
        counts[next(runs, "host")] += 1
    got = shares(ProfilerSpan(0, 30), kinds)
    assert got._asdict() == pytest.approx({kind: count / 30 for kind, count in counts.items()})
    assert sum(got) == pytest.approx(1)


def test_no_time_at_all():
    assert shares(ProfilerSpan(3, 3), {"compute": [ProfilerSpan(0, 9)]}) == (0, 0, 0, 0)
