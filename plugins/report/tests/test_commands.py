"""``torchbus runs`` and ``torchbus report`` as they are typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torchbus_cli.main import main

Write = Callable[..., Path]


@pytest.fixture
def logs(write_run: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with three runs in torchbus-logs."""
    write_run("20260214-103000-aaaa", "baseline")
    write_run("20260214-114500-bbbb", lr=0.3, tail="{")
    write_run("20260215-090000-cccc", ranks=1)
    (tmp_path / "torchbus-logs" / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("terminal_columns", ["80", "200"])
def test_runs_as_a_table(
    logs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal_columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", terminal_columns)
    assert main(["runs"]) == 0
    head, first, second, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["RUN", "NAME", "STATE", "RANKS", "STEPS", "TIME", "LOSS", "NOTES"]
    assert first.split() == [
        "20260214-103000-aaaa",
        "baseline",
        "finished",
        "2",
        "49",
        "0:06",
        "0.08629",
    ]
    assert second.split()[0] == "20260214-114500-bbbb" and "ended in" in second


def test_runs_as_json(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "torchbus-logs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["run"][-4:] for one in found] == ["aaaa", "bbbb", "cccc"] and found[0][
        "steps"
    ] == 49


def test_a_report_of_runs_by_path_name_beginning_and_last(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "report",
                "torchbus-logs/20260214-103000-aaaa",
                "20260214-11",
                "last",
                "last",
                "-o",
                "out.html",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.startswith("out.html: 3 runs, ")
    text = Path("out.html").read_text()
    assert (
        text.startswith("<!doctype html>")
        and "cccc" in text
        and "ended in mid-line on 2 files" in text
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["report", "2026"],
            "'2026' may be any of 20260214-103000-aaaa, 20260214-114500-bbbb, 20260215-090000-cccc: write more of the name",
        ),
        (
            ["report", "x"],
            "there is no run 'x' in torchbus-logs; `torchbus runs` lists them (3 in torchbus-logs)",
        ),
        (
            ["report", "last", "-o", "no/such/folder.html"],
            "no/such/folder.html can't be written: No such file or directory",
        ),
        (["report", "a", "--folder", "elsewhere"], "there is no folder elsewhere"),
        (["runs", "elsewhere"], "there is no folder elsewhere"),
    ],
)
def test_bad_input(
    logs: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_too_many_runs(
    write_run: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(write_run(f"run{number}", steps=1, ranks=1)) for number in range(17)]
    assert main(["report", *folders]) == 2
    assert "name at most 16" in capsys.readouterr().err


def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert 'session(logger="local") writes one' in capsys.readouterr().out
