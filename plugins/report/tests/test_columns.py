"""``torchbus runs``: every logged value, sorted, filtered, and in a file."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchbus_cli.main import main
from torchbus_report.page import page
from torchbus_report.runs import reading

from .conftest import lines

Write = Callable[..., Path]


@pytest.fixture
def logs(write_run: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with four runs; the last one has logged no accuracy."""
    for name, lr, accuracies in (
        ("a", 0.1, [0.5, 0.9, 0.8]),
        ("b", 0.3, [0.7, 0.7, 0.95]),
        ("c", 0.2, [0.1, 0.2, float("nan")]),
        ("d", 0.4, []),
    ):
        folder = write_run(name, lr=lr, steps=3)
        records = [
            {"step": 3 + step, "time_s": 9.0 + step, "val/acc": _json(value), "x": step}
            for step, value in enumerate(accuracies)
        ]
        with (folder / "metrics-rank0.jsonl").open("a") as file:
            file.write(lines(records))
    config = json.loads((folder / "config.json").read_text())
    config["hyperparams"]["note"] = "=1+1"
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def _json(value: float) -> Any:
    return value if value == value else "nan"


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    assert main(["runs", *words]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_table_has_what_the_loop_logs(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, a, *_ = shown(capsys)
    assert head == [
        "RUN",
        "NAME",
        "STATE",
        "RANKS",
        "STEPS",
        "TIME",
        "LOSS",
        "VAL/ACC",
        "X",
        "NOTES",
    ]
    assert a == ["a", "finished", "2", "5", "0:11", "0.9048", "0.8", "2"]


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["--sort", "val/acc"], "abcd"),
        (["--sort", "val/acc", "--reverse"], "bacd"),
        (["--sort", "max:val/acc"], "cabd"),
        (["--sort", "hyperparams.lr", "--reverse"], "dbca"),
        (["--sort", "run", "--reverse"], "dcba"),
        (["--reverse"], "dcba"),
        (["--where", "max:val/acc>=0.9"], "ab"),
        (["--where", "val/acc < 0.9", "--where", "lr=0.1"], "a"),
        (["--where", "hyperparams.model.depth=12", "--where", "run!=a"], "bcd"),
        (["--where", "strategy=ddp", "--where", "steps>2"], "abc"),
    ],
)
def test_sort_and_filter(
    logs: Path, capsys: pytest.CaptureFixture[str], words: list[str], runs: str
) -> None:
    assert [row[0] for row in shown(capsys, *words, "--columns", "run,val/acc")[1:]] == [*runs]


def test_nothing_is_left(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--where", "loss>5")[0][:5] == ["no", "run", "with", "such", "values"]


def test_a_file_of_all_of_it(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--csv", "runs.csv", "--sort", "val/acc")[0][:3] == [
        "runs.csv:",
        "4",
        "runs,",
    ]
    rows = list(csv.DictReader(Path("runs.csv").read_text().splitlines()))
    assert [row["run"] for row in rows] == [*"abcd"]
    assert rows[1]["val/acc"] == "0.95" and rows[1]["min:val/acc"] == "0.7"
    assert rows[0]["model.depth"] == "12" and rows[0]["hyperparams.lr"] == "0.1"
    assert rows[3]["val/acc"] == "" and rows[3]["note"] == "'=1+1"
    shown(capsys, "--csv", "few.csv", "--columns", "run,lr")
    assert Path("few.csv").read_text().splitlines()[:2] == ["run,lr", "a,0.1"]


def test_json_has_every_value(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--json", "--where", "run=c"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["values"]["val/acc"] == "nan" and found["greatest"]["val/acc"] == 0.2
    assert found["hyperparams"] == {"lr": "0.2", "model.depth": "12"}


def test_the_page_shows_them(logs: Path) -> None:
    text = page([reading.read(logs / "torchbus-logs" / name) for name in "ab"])
    assert '<td data-head="val/acc">0.95</td>' in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sort", "val/ac"], "no run has logged 'val/ac', or has it as a hyperparameter; did"),
        (["--where", "loss"], "write a name, one of >= <= != = > <"),
        (["--where", "loss>low"], "> compares numbers, and 'low' is not one"),
        (["--csv", "no/such/file.csv"], "no/such/file.csv can't be written"),
    ],
)
def test_bad_input(
    logs: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["runs", *words]) == 2
    assert said in capsys.readouterr().err
