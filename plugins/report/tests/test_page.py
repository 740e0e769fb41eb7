"""The page: complete, alone, safe, legible. What it looks like has to be looked at."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchbus_report import page, read
from torchbus_report.page import scale
from torchbus_report.page.series import MOST_POINTS, series, smooth
from torchbus_report.page.style import DARK, LIGHT

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
Write = Callable[..., Path]
VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """What a browser finds: tags that match, charts with their numbers, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data + "\n"

    @property
    def charts(self) -> list[dict[str, Any]]:
        return [json.loads(attrs["data-hover"] or "") for _, attrs in self.tags if "data-hover" in attrs]

    @property
    def titles(self) -> list[str]:
        return [str(attrs["aria-label"]).split(":")[0] for _, attrs in self.tags if attrs.get("role") == "img"]


def test_one_run(write_run: Write) -> None:
    found = Page(page([read(write_run("20260214-103000-a1b2", "baseline"))]))
    assert found.titles == ["loss", "learning rate", "throughput", "GPU utilisation"]  # and not what is zero throughout
    loss, _, _, gpu = found.charts
    assert loss["s"][0]["x"] == list(range(50)) and loss["s"][0]["y"][0] == 1.0
    assert [(curve["l"], curve["y"][0]) for curve in gpu["s"]] == [("rank 0", 50.0), ("rank 1", 51.0)]
    for word in ("baseline", "20260214-103000-a1b2", "hyperparams.model.depth", "train.py --lr 0.1", "2026-02-14 10:30"):
        assert word in found.text


def test_several_runs_are_compared(write_run: Write) -> None:
    found = Page(page([read(write_run("a", "first")), read(write_run("b", "second", lr=0.3, ranks=1))]))
    assert [curve["l"] for curve in found.charts[0]["s"]] == ["first", "second"]
    assert [curve["l"] for curve in found.charts[3]["s"]] == ["first, rank 0", "first, rank 1", "second, rank 0"]
    marked = re.findall(r"<tr class=differs><th scope=row>([^<]*)", page([read(write_run("c")), read(write_run("d", lr=0.3))]))
    assert marked == ["command", "hyperparams.lr"]


def test_it_needs_nothing_from_elsewhere(write_run: Write) -> None:
    text = page([read(write_run("a"))])
    found = Page(text)
    assert not {tag for tag, _ in found.tags} & {"link", "img", "iframe", "object", "embed"}
    assert not [attrs for _, attrs in found.tags if {"src", "href", "srcset"} & attrs.keys()]
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttp|import\(", text)


def test_whatever_is_logged_is_text(write_run: Write) -> None:
    evil = "</script><img src=x onerror=alert(1)>\"'&"
    folder = write_run("a", evil)
    (folder / "metrics-rank0.jsonl").write_text(json.dumps({"step": 1, "time_s": 1.0, evil: 2.0}) + "\n")
    (folder / "config.json").write_text(json.dumps({"name": evil, evil: {evil: [evil]}, "strategy": evil}))
    found = Page(page([read(folder), read(write_run("b"))]))
    assert not [tag for tag, _ in found.tags if tag == "img"] and found.text.count("onerror") >= 5
    assert found.charts[0]["s"] is not None


def test_values_that_are_not_finite_are_gaps_and_counted(write_run: Write) -> None:
    folder = write_run("a")
    told = [{"step": step, "time_s": 1.0, "loss": value} for step, value in enumerate([1.0, "nan", 2.0, "inf"])]
    (folder / "metrics-rank0.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
    text = page([read(folder)])
    assert "2 values not finite" in text and Page(text).charts[0]["s"][0]["y"] == [1.0, None, 2.0, None]


def test_runs_without_anything(tmp_path: Path) -> None:
    assert "No metrics were logged." in Page(page([read(tmp_path)])).text


def test_equal_values_and_single_points(write_run: Write) -> None:
    folder = write_run("a", steps=1)
    (folder / "metrics-rank0.jsonl").write_text('{"step": 5, "time_s": 0, "loss": 0, "same": -3}\n{"step": 6, "time_s": 1, "same": -3}\n')
    assert Page(page([read(folder)])).titles[:2] == ["loss", "same"]


def contrast(one: str, other: str) -> float:
    """Of two colours, by WCAG 2.1."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_told_from_their_ground(colors: dict[str, str]) -> None:
    for ground in ("ground", "panel"):
        assert min(contrast(colors[name], colors[ground]) for name in ("text", "quiet", "bad")) >= 4.5
        assert min(contrast(colors[f"c{number}"], colors[ground]) for number in range(8)) >= 3
    assert contrast(colors["text"], colors["mark"]) >= 4.5


numbers = st.floats(-1e12, 1e12).filter(lambda value: value == 0 or abs(value) > 1e-200)  # a page has no room for more decades


@UNHURRIED
@given(st.lists(st.tuples(st.floats(0, 1e9), numbers), min_size=1, max_size=3000))
def test_thinning_keeps_the_ends_of_what_was_seen(points: list[tuple[float, float]]) -> None:
    found = series("a", 0, points)
    assert len(found.points) <= MOST_POINTS and found.x == sorted(found.x) and set(found.points) <= set(points)
    assert (min(found.known), max(found.known)) == (min(y for _, y in points), max(y for _, y in points))


@UNHURRIED
@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_smoothing_stays_within_the_values(y: list[float]) -> None:
    found = [mean for _, mean in smooth([(float(x), value) for x, value in enumerate(y)])]
    assert len(found) == len(y) and min(y) - 1e-6 <= min(found) and max(found) <= max(y) + 1e-6


@UNHURRIED
@given(st.lists(st.one_of(numbers, st.floats(1e-12, 1e12)), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_every_value_has_a_place_and_ticks_are_round(values: list[float], from_zero: bool, log: bool) -> None:
    found = scale.fit(values, from_zero=from_zero, log=log)
    assert all(-1e-6 <= found.place(value) <= 1 + 1e-6 for value in values)
    ticks = found.ticks()
    assert len(ticks) <= 12 and all(-1e-6 <= found.place(tick) <= 1 + 1e-6 for tick in ticks) and ticks == sorted(ticks)
    if max(values) - min(values) > 1e-6 * max(map(abs, values)):
        assert len({scale.tick_text(tick) for tick in ticks}) >= 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_shows_values_where_it_is_pointed_at(write_run: Write, tmp_path: Path) -> None:
    point = """<script>for (const plot of [...document.querySelectorAll(".plot")].slice(0, 1)) { const box = plot.getBoundingClientRect();
        plot.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width, clientY: box.top})); }</script></body>"""
    path = tmp_path / "page.html"
    path.write_text(page([read(write_run("a", "first")), read(write_run("b", "second"))]).replace("</body>", point))
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    tip = re.sub(r"<[^>]*>", " ", dom.split('class="tip"')[1].split("</figure>")[0])
    assert "step 49" in tip and f"{float(f'{math.exp(-49 / 20):.5g}')}" in tip and "first" in tip and "second" in tip
