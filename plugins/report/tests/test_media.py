"""Pictures and histograms: from a loop to the page."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchbus_log.trackers.values import Image
from torchbus_report import page
from torchbus_report.page import media as drawn
from torchbus_report.runs.media import Distribution
from torchbus_report.runs.reading import read

from .test_page import Page

Write = Callable[..., Path]
PICTURE = Image("a", torch.rand(3, 4, 5)).png()


def log(folder: Path, *records: dict[str, object]) -> Path:
    """Lines of media.jsonl, and a picture for each that names one in the folder."""
    (folder / "media").mkdir(exist_ok=True)
    with (folder / "media.jsonl").open("a") as file:
        for record in records:
            file.write(json.dumps({"time_s": 1.0, **record}) + "\n")
            if str(record.get("file", "")).startswith("media/"):
                (folder / str(record["file"])).write_bytes(PICTURE)
    return folder


def picture(step: int, name: str = "samples") -> dict[str, object]:
    return {"step": step, "image": name, "file": f"media/{step:06}.png"}


def test_a_page_shows_the_last_picture_and_has_the_earlier_ones(write_run: Write) -> None:
    folder = log(write_run("a"), *(picture(step) for step in range(30)))
    found = Page(page([read(folder)]))
    images = [attrs for tag, attrs in found.tags if tag == "img"]
    steps = [int(attrs["data-step"] or "") for attrs in images]
    assert len(steps) == 12 and (steps[0], steps[-1]) == (0, 29) and steps == sorted(steps)
    assert ["hidden" in attrs for attrs in images] == [True] * 11 + [False]
    kind, _, data = str(images[0]["src"]).partition(",")
    assert kind == "data:image/png;base64" and base64.b64decode(data) == PICTURE


def test_a_histogram_has_a_column_for_each_step(write_run: Write) -> None:
    records = [
        {"step": step, "histogram": "w", "counts": [1.0, 3.0], "range": [0.0, 1.0]}
        for step in (5, 6)
    ]
    found = Page(page([read(log(write_run("a"), *records))]))
    cells = [attrs for tag, attrs in found.tags if tag == "rect"]
    assert {attrs["x"] for attrs in cells} == {"0", "500"}
    assert {attrs["opacity"] for attrs in cells} >= {"1.00", "0.33"}
    assert "w: steps 5 to 6" in found.titles or any("w" in title for title in found.titles)


def test_several_runs_have_figures_of_their_own(write_run: Write) -> None:
    folders = [log(write_run(name, name), picture(1)) for name in ("one", "two")]
    text = page([read(folder) for folder in folders])
    assert text.count('class="chart pictures"') == 2


OUTSIDE = ["../secret.png", "/etc/passwd", "media/../../secret.png", "media/a.png", "media/1.jpg"]


@pytest.mark.parametrize("place", OUTSIDE)
def test_only_pictures_of_the_folder_are_read(write_run: Write, place: str) -> None:
    folder = write_run("a")
    (folder.parent / "secret.png").write_bytes(PICTURE)
    (folder / "media.jsonl").write_text(
        json.dumps({"step": 1, "time_s": 1.0, "image": "x", "file": place}) + "\n"
    )
    assert "<img" not in page([read(folder)])


def test_a_link_out_of_the_folder_and_another_format_are_left_out(write_run: Write) -> None:
    folder = log(write_run("a"), picture(1), picture(2), picture(3))
    (folder.parent / "secret.png").write_bytes(PICTURE)
    (folder / "media/000001.png").unlink()
    (folder / "media/000001.png").symlink_to(folder.parent / "secret.png")
    (folder / "media/000002.png").write_bytes(b"<svg onload=alert(1)>")
    assert re.findall(r"data-step=\"(\d)", page([read(folder)])) == ["3"]


DAMAGED = [
    {"step": 1, "histogram": "w", "counts": [], "range": [0, 1]},
    {"step": 1, "histogram": "w", "counts": [-1.0], "range": [0, 1]},
    {"step": 1, "histogram": "w", "counts": [1.0], "range": [1, 1]},
    {"step": 1, "histogram": "w", "counts": [1.0], "range": [0, float("inf")]},
    {"step": 1, "histogram": "w", "counts": ["1"], "range": [0, 1]},
    {"step": 1, "histogram": 3, "counts": [1.0], "range": [0, 1]},
    {"step": "1", "histogram": "w", "counts": [1.0], "range": [0, 1]},
]


@pytest.mark.parametrize("record", DAMAGED)
def test_damaged_histograms_are_left_out(write_run: Write, record: dict[str, object]) -> None:
    folder = log(write_run("a"), record)
    assert read(folder).media.histograms == [] and "Histograms" not in page([read(folder)])


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=64),
    st.floats(-100, 100),
    st.floats(1e-3, 1e3),
    st.floats(0, 10),
    st.floats(0, 10),
)
def test_no_count_is_lost_or_doubled(
    counts: list[float], low: float, width: float, below: float, above: float
) -> None:
    one = Distribution("w", 0, counts, low, low + width)
    rows = drawn.density(one, low - below, low + width + above + 1e-6)
    assert sum(rows) == pytest.approx(sum(counts), rel=1e-6, abs=1e-6)


@given(st.integers(1, 60), st.integers(2, 12))
def test_the_first_and_the_last_are_among_those_shown(count: int, most: int) -> None:
    things = [Distribution("w", step, [1.0], 0.0, 1.0) for step in range(count)]
    shown = [one.step for one in drawn.spread(things, most)]
    assert len(shown) == min(count, most) and shown == sorted(set(shown))
    assert (shown[0], shown[-1]) == (0, count - 1)
