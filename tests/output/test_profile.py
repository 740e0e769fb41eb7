"""torchbus-profile on several ranks: who waits for whom."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from torchbus_testing.scripts import run_script

SCRIPT = """
import time, torch
from torch.utils.data import DataLoader
from torchbus import session

with session(devices=2, launch="fork", profile={"skip_first": 2, "active": 3}, logger="local") as s:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(torch.randn(160, 64), batch_size=8):
        time.sleep(0.05 * s.rank)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


def test_a_rank_waits_for_one_that_sleeps(tmp_path: Path) -> None:
    result = run_script(SCRIPT, cwd=tmp_path).ok()
    rows = result.stdout[result.stdout.index("rank  ms") :].splitlines()
    assert rows[0].split() == ["rank", "ms", "compute", "ranks", "data", "host"]
    shares = [[float(cell) for cell in row.replace("%", "").split()] for row in rows[1:3]]
    assert [row[0] for row in shares] == [0, 1]
    assert shares[0][3] > shares[1][3] and shares[1][5] > shares[0][5]
    assert all(99.5 < sum(row[2:]) < 100.5 for row in shares)
    (folder,) = (tmp_path / "torchbus-profiles").iterdir()
    for rank in (0, 1):
        with gzip.open(folder / f"rank{rank}.7.pt.trace.json.gz") as file:
            assert json.load(file)["distributedInfo"]["rank"] == rank
    (run,) = (tmp_path / "torchbus-logs").iterdir()
    records = [json.loads(line) for line in (run / "media.jsonl").read_text().splitlines()]
    assert [one["table"] for one in records] == ["profile: operators", "profile: ranks"]
    assert [row[0] for row in records[1]["rows"]] == ["0", "1"]
