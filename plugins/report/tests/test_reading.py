"""Whatever a killed process or a broken disk has left is read as far as it goes, and counted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchbus_report.runs import summary
from torchbus_report.runs.reading import parse, read

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
values = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["nan", "inf", "-inf"])
records = st.lists(
    st.fixed_dictionaries(
        {"step": st.integers(0, 10**9), "time_s": st.floats(0, 1e9), "loss": values}
    ),
    max_size=8,
)


def content_of(told: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in told).encode()


@UNHURRIED
@given(records)
def test_whole_files_are_read_whole(told: list[dict[str, Any]]) -> None:
    found = parse(content_of(told))
    assert (found.damaged, found.cut) == (0, False)
    assert [(point.step, point.time_s) for point in found.points] == [
        (record["step"], record["time_s"]) for record in told
    ]
    assert [repr(point.values["loss"]) for point in found.points] == [
        repr(float(record["loss"])) for record in told
    ]


@UNHURRIED
@given(records, st.data())
def test_a_file_that_ends_anywhere_loses_its_last_line_at_most(
    told: list[dict[str, Any]], data: Any
) -> None:
    content = content_of(told)
    end = data.draw(st.integers(0, len(content)))
    found = parse(content[:end])
    whole = content[:end].count(b"\n")
    assert found.damaged == 0 and len(found.points) in (whole, whole + 1)
    assert found.cut == (
        len(found.points) == whole and content[:end] != b"" and not content[:end].endswith(b"\n")
    )


@UNHURRIED
@given(records, st.lists(st.binary(max_size=40), max_size=5), st.randoms())
def test_damaged_lines_are_left_out_and_counted(
    told: list[dict[str, Any]], rubbish: list[bytes], random: Any
) -> None:
    broken = [b"\xff{" + line.replace(b"\n", b"") for line in rubbish]
    mixed = content_of(told).splitlines() + broken
    random.shuffle(mixed)
    found = parse(b"".join(line + b"\n" for line in mixed))
    assert (len(found.points), found.damaged, found.cut) == (len(told), len(broken), False)


@pytest.mark.parametrize(
    "line",
    ["[1]", "5", "null", '{"loss": 1}', '{"time_s": "soon"}', '{"time_s": true}', "{" * 3000, ""],
)
def test_lines_that_are_no_records(line: str) -> None:
    found = parse(line.encode() + b"\n")
    assert found.points == [] and found.damaged == (line != "")


def test_only_numbers_are_metrics() -> None:
    (point,) = parse(
        b'{"time_s": 1, "a": 2, "b": "nan", "c": "text", "d": true, "e": null, "f": [1], "g": NaN, "step": 3.0}\n'
    ).points
    assert repr(point.values) == repr({"a": 2.0, "b": math.nan, "g": math.nan}) and (
        point.step,
        point.epoch,
    ) == (3, None)


def test_a_run(write_run: Callable[..., Path]) -> None:
    run = read(write_run("20260214-103000-a1b2", "baseline", tail='{"step": 50, "lo'))
    assert run.label == "baseline" and list(run.metrics) == [0, 1] and list(run.system) == [0, 1]
    told = summary.of(run)
    assert (told.steps, told.epochs, told.ranks, told.duration_s) == (49, 2, 2, 6.0)
    assert (
        told.loss == told.best_loss == pytest.approx(math.exp(-49 / 20))
        and told.samples_per_s == 100.0
    )
    assert told.notes == ["ended in mid-line on 2 files (killed?)"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "config.json can't be read: No such file"),
        ("{", "config.json is damaged: "),
        ("[]", "config.json is damaged: it holds no object"),
    ],
)
def test_a_run_without_a_configuration(
    write_run: Callable[..., Path], text: str | None, words: str
) -> None:
    folder = write_run("a")
    (folder / "config.json").unlink() if text is None else (folder / "config.json").write_text(text)
    run = read(folder)
    assert run.label == "a" and run.config_error.startswith(words) and summary.of(run).steps == 49
    assert summary.of(run).notes[0].startswith(words)


def test_an_empty_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    told = summary.of(read(tmp_path))
    assert (told.steps, told.loss, told.duration_s, told.notes) == (0, None, 0.0, [])
