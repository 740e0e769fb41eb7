"""A run that resumes goes on counting epochs: in what is logged, and in the progress bar."""

from __future__ import annotations

import json
from pathlib import Path

from torchbus_testing.forking import fork_script

LOOP = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

def run(folder, ranks, max_steps, numbers):
    with session(
        devices=ranks, launch="fork", batch="global", max_steps=max_steps, progress=True, seed=0,
        checkpoint=folder, logger="local", log_dir=folder + "/logs", log_every_n_steps=1,
    ) as s:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(16, 2)), 4)
        for _ in s.epochs(6) if numbers == "epochs" else range(6):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                [model(x) for (x,) in loader]

for name, ranks, numbers in (("a", 1, "range"), ("b", 2, "epochs")):
    for max_steps in (4, 10, 18):
        print("ranks", ranks, "steps", max_steps, file=sys.stderr)
        run(sys.argv[1] + "/" + name, ranks, max_steps, numbers)
"""


def test_epochs_are_counted_on(tmp_path: Path) -> None:
    result = fork_script(LOOP, str(tmp_path))
    assert result.ok(), result
    for name in "ab":
        files = (tmp_path / name / "logs").glob("*/metrics-rank0.jsonl")
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        found = {line["step"]: line["epoch"] for line in lines if "loss" in line}
        assert found == {step: (step - 1) // 4 for step in range(1, 19)}, name
    ended = [line.partition(":")[0] for line in result.stderr.splitlines() if "steps, " in line]
    assert ended == ["1 epoch", "3 epochs", "5 epochs"] * 2
