"""What is logged on several ranks is the value over all of them, in one collective, and never a
hang.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import run as run_command
from torchbus_testing.scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.timeout(900)
PATIENCE_S = 800.0

HEAD = (SCRIPTS / "logging_head.py").read_text()


def ranks(folder) -> list[dict]:
    told = [json.loads(path.read_text()) for path in folder.glob("told*.json")]
    return sorted(told, key=lambda one: one["rank"])


def series(told: dict, name: str) -> list[float]:
    return [metrics[name] for _, metrics in told["lines"] if name in metrics]


VALUES = SCRIPTS / "logging_values.py"


def test_values_over_two_uneven_ranks(tmp_path):
    assert fork_script(VALUES, cwd=tmp_path, timeout_s=PATIENCE_S).ok()
    told = ranks(tmp_path)
    assert len(told) == 2
    for one in told:
        assert series(one, "nine") == [4.0, 4.0]
        assert (series(one, "most"), series(one, "all")) == ([8.0, 8.0], [36.0, 36.0])
        assert series(one, "step") == [1.5, 5.5, 8.0] * 2
        assert series(one, "own") == [float(one["rank"])] * 6
        assert series(one, "evaluated") == [4.0]
        assert series(one, "unequal") == [38 / 7]
        assert [series(one, f"m{number}") for number in range(50)] == [
            [number + 0.5] for number in range(50)
        ]
        assert one["counts"] == {"all_reduce": 1}
    assert (
        series(told[0], "metric") == series(told[1], "metric")
        and len(series(told[0], "metric")) == 2
    )
    assert series(told[0], "alone") == [4.0] and series(told[1], "alone") == []


ONE_RANK_ONLY = (
    HEAD
    + """
hears = Hears()
with session(devices=2, launch="fork", logger=hears, log_every_n_steps=2) as s:
    for x in loop(DataLoader(TensorDataset(torch.arange(16.0)), batch_size=2)):
        if s.rank == 1:
            s.log("rare", x.mean(), {how})
"""
)


@pytest.mark.parametrize("how", ["on_epoch=True", "sync_dist=True"])
def test_a_metric_of_one_rank_alone_is_an_error_that_names_both(tmp_path, how):
    result = fork_script(ONE_RANK_ONLY.replace("{how}", how), cwd=tmp_path, timeout_s=PATIENCE_S)
    assert result.status == 1 and not result.orphans
    words = r"RanksDiverged: s.log\('rare'\) is to be reduced over ranks, but the number of its values up to step \d is 0 on rank 0, 1 on rank 1: "
    assert re.search(words, result.stderr)


DIGITS = """
import os, sys
sys.path.insert(0, {examples!r})
import digits
from torchbus import session

os.environ |= {{"WANDB_MODE": "offline", "NEPTUNE_MODE": "offline", "SOME_API_KEY": "hush-hush-hush"}}

if __name__ == "__main__":
    options = digits.parser().parse_args(["--epochs=2", "--batch-size=128"])
    with session(strategy="ddp", devices=2, logger=["local", "wandb", "neptune"], log_every_n_steps=3) as s:
        s.log_hyperparams(vars(options) | {{"api_key": "hush-hush-hush"}})
        digits.main(options)
        print(s.explain())
"""


@pytest.mark.slow
def test_the_digits_in_three_loggers(tmp_path):
    """One run in each, with equal values, and no token anywhere."""
    result = run_script(DIGITS.format(examples=str(EXAMPLES)), cwd=tmp_path, timeout_s=PATIENCE_S)
    assert result.ok()
    local = local_values(tmp_path)
    assert [step for step, _ in local["loss"]] == [3, 6, 9, 12] and {
        "lr",
        "step_time_s",
        "samples_per_s",
    } <= set(local)
    assert wandb_values(tmp_path) == local
    assert neptune_values(tmp_path) == local
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(b"hush-hush-hush" not in path.read_bytes() for path in files) and len(files) > 8
    assert "hush-hush-hush" not in result.stdout + result.stderr


def local_values(folder) -> dict[str, list[tuple[float, float]]]:
    (run,) = (folder / "torchbus-logs").iterdir()
    assert sorted(path.name for path in run.iterdir()) == [
        "config.json",
        "metrics-rank0.jsonl",
        "metrics-rank1.jsonl",
    ]
    lines = [json.loads(line) for line in (run / "metrics-rank0.jsonl").read_text().splitlines()]
    return by_name(
        [
            (line["step"], {key: line[key] for key in line if key not in ("step", "time_s")})
            for line in lines
        ]
    )


def wandb_values(folder) -> dict[str, list[tuple[float, float]]]:
    (run,) = (folder / "wandb").glob("offline-run-*")
    result = run_command(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run)], timeout_s=PATIENCE_S
    )
    assert result.ok()
    records = [json.loads(line) for line in result.stdout.splitlines()]
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    return by_name(
        [
            (
                item["step"],
                {key: item[key] for key in item if key != "step" and not key.startswith("_")},
            )
            for item in items
        ]
    )


def neptune_values(folder) -> dict[str, list[tuple[float, float]]]:
    (run,) = (folder / ".neptune" / "offline").iterdir()
    operations = [json.loads(line)["obj"] for line in (run / "data-1.log").read_text().splitlines()]
    told: dict[str, list[tuple[float, float]]] = {}
    for operation in operations:
        if operation["type"] == "LogFloats" and operation["path"][0] == "metrics":
            told.setdefault("/".join(operation["path"][1:]), []).extend(
                (one["step"], one["value"]) for one in operation["values"]
            )
    return told


def by_name(lines) -> dict[str, list[tuple[float, float]]]:
    told: dict[str, list[tuple[float, float]]] = {}
    for step, metrics in lines:
        for name, value in metrics.items():
            told.setdefault(name, []).append((step, value))
    return told


def test_a_bar_alone_shows_what_is_logged_for_it():
    """No logger is named: nothing is written, and rank 0's bar has the mean over ranks."""
    source = (
        HEAD
        + """
with session(strategy="ddp", devices=2, progress=True) as s:
    for x in loop(DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2)):
        s.log("value", x.mean(), on_epoch=True, sync_dist=True, prog_bar=True)
        s.log("hidden", x.mean())
print(os.listdir())
"""
    )
    result = fork_script(source)
    assert (
        result.ok()
        and "value 3.500" in result.stderr.splitlines()[-1]
        and "hidden" not in result.stderr
    )
    assert "logs" not in result.stdout
