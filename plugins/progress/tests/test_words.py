"""What is written, for whatever numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchbus_progress import words
from torchbus_progress.outputs import line
from torchbus_progress.words import ProgressState

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
snapshots = st.builds(
    ProgressState,
    st.sampled_from(["epoch 1", "epoch 123", "eval", "step"]),
    st.integers(0, 10**7),
    st.none() | st.integers(0, 10**7),
    st.floats(0, 1e6),
    st.none() | st.floats(1e-6, 1e6),
    st.dictionaries(st.sampled_from(["loss", "acc", "val/损失"]), st.floats(), max_size=3),
)


@UNHURRIED
@given(snapshots, st.integers(20, 200), st.booleans())
def test_a_line_fits_and_says_what_matters(
    snapshot: ProgressState, columns: int, unicode: bool
) -> None:
    text = line(snapshot, columns, unicode)
    assert text.cell_len <= columns
    assert text.plain.startswith(snapshot.label[:columns])
    if columns >= 60:
        assert words.count(snapshot) in text.plain
        assert all(words.metrics(snapshot)[0] in text.plain for _ in snapshot.metrics)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (750, "12:30"), (3723, "1:02:03"), (-1, "0:00")],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(118.4, "118 it/s"), (2.54, "2.5 it/s"), (0.3125, "3.2 s/it"), (0.001, "1e+03 s/it")],
)
def test_speeds(rate: float, text: str) -> None:
    assert words.speed(rate) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.312, "0.3120"),
        (12.5, "12.50"),
        (1234.0, "1234"),
        (0.0, "0"),
        (1e-5, "1e-05"),
        (2.5e7, "2.5e+07"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert words.number(value) == text
