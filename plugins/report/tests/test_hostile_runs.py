"""Runs that are too much, links, secrets of older configurations, and pages that can not be written."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from torchbus_report.page import page
from torchbus_report.runs import summary
from torchbus_report.runs.reading import read

from .hostile_files import BAD, GOOD, called, fill


def test_a_configuration_that_is_too_much(logs: Path) -> None:
    fill(logs / BAD, {"config.json": "sparse"})
    assert read(logs / BAD).config_error == "config.json is longer than 1 MiB"
    fill(logs / BAD, {"config.json": b"[" * 100_000})
    assert read(logs / BAD).config_error == "config.json is damaged: it is nested too deeply"


def test_a_link_to_a_folder_elsewhere_is_not_followed_unless_named(
    logs: Path, tmp_path: Path
) -> None:
    shutil.copytree(logs / GOOD, tmp_path / "elsewhere")
    (logs / BAD).symlink_to(tmp_path / "elsewhere")
    found = {one["run"]: one for one in json.loads(called("runs", str(logs), "--json")[1])}
    assert found[BAD]["steps"] == 0 and found[BAD]["notes"][0].startswith(
        "is a link that leads out of the folder: name "
    )
    assert summary.of(read(logs / BAD)).steps == 49


def test_secrets_of_older_configurations_are_hidden(logs: Path) -> None:
    fill(
        logs / BAD,
        {
            "config.json": json.dumps(
                {"hyperparams": {"pwd": "old-secret-1"}, "command": ["--api-key=old-secret-2"]}
            ).encode()
        },
    )
    assert "old-secret" not in page([read(logs / BAD)])


def test_many_metrics_make_a_page(logs: Path) -> None:
    fill(
        logs / BAD,
        {
            "metrics-rank0.jsonl": json.dumps(
                {"step": 1, "time_s": 1} | {f"m{number}": number for number in range(20_000)}
            ).encode()
        },
    )
    assert "19700 more metrics are not drawn." in page([read(logs / BAD)])


def test_a_page_that_can_not_be_written_leaves_the_old_one(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "out.html").write_text("old")
    monkeypatch.setattr(os, "replace", full)
    status, _, err = called("report", str(logs / GOOD), "-o", str(tmp_path / "out.html"))
    assert (
        status == 2
        and "out.html can't be written: No space left on device" in err
        and (tmp_path / "out.html").read_text() == "old"
    )


def test_a_link_in_the_place_of_the_page_is_not_followed(logs: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("somebody's")
    for name in ("out.html", "out.html.part"):
        (tmp_path / name).symlink_to(tmp_path / "other")
    assert called("report", str(logs / GOOD), "-o", str(tmp_path / "out.html"))[0] == 0
    assert (tmp_path / "other").read_text() == "somebody's"
    assert "<html" in (tmp_path / "out.html").read_text()


def test_lost_records_are_said(logs: Path) -> None:
    lines = b'{"step": 1, "time_s": 1, "loss": 2}\n{"step": 9, "time_s": 2, "records_lost": 7}\n'
    fill(logs / BAD, {"config.json": b"{}", "metrics-rank0.jsonl": lines})
    run = read(logs / BAD)
    assert summary.of(run).notes == ["7 records could not be written"] and all(
        "records_lost" not in point.values for point in run.metrics[0].points
    )
