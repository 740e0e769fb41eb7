"""Colours, thinning, smoothing and ticks of the report's charts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchbus_cli import html_page
from torchbus_report.page.series import MOST_POINTS, fit, series, smooth, tick_text
from torchbus_report.page.style import DARK, LIGHT

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def contrast(one: str, other: str) -> float:
    """Of two colours, by WCAG 2.1."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


COLORS = [html_page.LIGHT | LIGHT, html_page.DARK | DARK]


@pytest.mark.parametrize("colors", COLORS, ids=["light", "dark"])
def test_colours_can_be_told_from_their_ground(colors: dict[str, str]) -> None:
    for ground in ("ground", "panel"):
        assert (
            min(contrast(colors[name], colors[ground]) for name in ("text", "quiet", "bad")) >= 4.5
        )
        assert min(contrast(colors[f"c{number}"], colors[ground]) for number in range(8)) >= 3
    assert contrast(colors["text"], colors["mark"]) >= 4.5


# a page has no room for more decades
numbers = st.floats(-1e12, 1e12).filter(lambda value: value == 0 or abs(value) > 1e-200)


@UNHURRIED
@given(st.lists(st.tuples(st.floats(0, 1e9), numbers), min_size=1, max_size=3000))
def test_thinning_keeps_the_ends_of_what_was_seen(points: list[tuple[float, float]]) -> None:
    found = series("a", 0, points)
    assert (
        len(found.points) <= MOST_POINTS
        and found.x == sorted(found.x)
        and set(found.points) <= set(points)
    )
    assert (min(found.known), max(found.known)) == (
        min(y for _, y in points),
        max(y for _, y in points),
    )


@UNHURRIED
@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_smoothing_stays_within_the_values(y: list[float]) -> None:
    found = [mean for _, mean in smooth([(float(x), value) for x, value in enumerate(y)])]
    assert len(found) == len(y) and min(y) - 1e-6 <= min(found) and max(found) <= max(y) + 1e-6


@UNHURRIED
@given(
    st.lists(st.one_of(numbers, st.floats(1e-12, 1e12)), min_size=1, max_size=20),
    st.booleans(),
    st.booleans(),
)
def test_every_value_has_a_place_and_ticks_are_round(
    values: list[float], from_zero: bool, log: bool
) -> None:
    found = fit(values, from_zero=from_zero, log=log)
    assert all(-1e-6 <= found.place(value) <= 1 + 1e-6 for value in values)
    ticks = found.ticks()
    assert (
        len(ticks) <= 12
        and all(-1e-6 <= found.place(tick) <= 1 + 1e-6 for tick in ticks)
        and ticks == sorted(ticks)
    )
    if max(values) - min(values) > 1e-6 * max(map(abs, values)):
        assert len({tick_text(tick) for tick in ticks}) >= 1
