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

from torchbus_report import page
from torchbus_report.runs.reading import read

Write = Callable[..., Path]
VOID = {"meta", "br", "link", "img", "input"}


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
        return [
            json.loads(attrs["data-hover"] or "") for _, attrs in self.tags if "data-hover" in attrs
        ]

    @property
    def titles(self) -> list[str]:
        return [
            str(attrs["aria-label"]).split(":")[0]
            for _, attrs in self.tags
            if attrs.get("role") == "img"
        ]


def test_one_run(write_run: Write) -> None:
    found = Page(page([read(write_run("20260214-103000-a1b2", "baseline"))]))
    # and not what is zero throughout
    assert found.titles == ["loss", "learning rate", "throughput", "GPU utilisation"]
    loss, _, _, gpu = found.charts
    assert loss["s"][0]["x"] == list(range(50)) and loss["s"][0]["y"][0] == 1.0
    assert [(curve["l"], curve["y"][0]) for curve in gpu["s"]] == [
        ("rank 0", 50.0),
        ("rank 1", 51.0),
    ]
    for word in (
        "baseline",
        "20260214-103000-a1b2",
        "hyperparams.model.depth",
        "train.py --lr 0.1",
        "2026-02-14 10:30",
    ):
        assert word in found.text


def test_several_runs_are_compared(write_run: Write) -> None:
    found = Page(
        page([read(write_run("a", "first")), read(write_run("b", "second", lr=0.3, ranks=1))])
    )
    assert [curve["l"] for curve in found.charts[0]["s"]] == ["first", "second"]
    assert [curve["l"] for curve in found.charts[3]["s"]] == [
        "first, rank 0",
        "first, rank 1",
        "second, rank 0",
    ]
    marked = re.findall(
        r"<tr class=differs><th scope=row>([^<]*)",
        page([read(write_run("c")), read(write_run("d", lr=0.3))]),
    )
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
    (folder / "metrics-rank0.jsonl").write_text(
        json.dumps({"step": 1, "time_s": 1.0, evil: 2.0}) + "\n"
    )
    (folder / "config.json").write_text(
        json.dumps({"name": evil, evil: {evil: [evil]}, "strategy": evil})
    )
    found = Page(page([read(folder), read(write_run("b"))]))
    assert not [tag for tag, _ in found.tags if tag == "img"] and found.text.count("onerror") >= 5
    assert found.charts[0]["s"] is not None


def test_values_that_are_not_finite_are_gaps_and_counted(write_run: Write) -> None:
    folder = write_run("a")
    told = [
        {"step": step, "time_s": 1.0, "loss": value}
        for step, value in enumerate([1.0, "nan", 2.0, "inf"])
    ]
    (folder / "metrics-rank0.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
    text = page([read(folder)])
    assert "2 values not finite" in text and Page(text).charts[0]["s"][0]["y"] == [
        1.0,
        None,
        2.0,
        None,
    ]


def test_runs_without_anything(tmp_path: Path) -> None:
    assert "No metrics were logged." in Page(page([read(tmp_path)])).text


def test_equal_values_and_single_points(write_run: Write) -> None:
    folder = write_run("a", steps=1)
    (folder / "metrics-rank0.jsonl").write_text(
        '{"step": 5, "time_s": 0, "loss": 0, "same": -3}\n{"step": 6, "time_s": 1, "same": -3}\n'
    )
    assert Page(page([read(folder)])).titles[:2] == ["loss", "same"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_shows_values_where_it_is_pointed_at(write_run: Write, tmp_path: Path) -> None:
    point = """<script>for (const plot of [...document.querySelectorAll(".plot")].slice(0, 1)) { const box = plot.getBoundingClientRect();
        plot.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width, clientY: box.top})); }</script></body>"""
    path = tmp_path / "page.html"
    path.write_text(
        page([read(write_run("a", "first")), read(write_run("b", "second"))]).replace(
            "</body>", point
        )
    )
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path / 'browser'}",
        "--dump-dom",
        path.as_uri(),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    tip = re.sub(r"<[^>]*>", " ", dom.split('class="tip"')[1].split("</figure>")[0])
    assert (
        "step 49" in tip
        and f"{float(f'{math.exp(-49 / 20):.5g}')}" in tip
        and "first" in tip
        and "second" in tip
    )
