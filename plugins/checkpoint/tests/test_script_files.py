"""What a script writes itself, with numbers of its own, is the same in a run that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.timeout(900)

LOOP = """
import json, logging, os, shutil, signal, sys
from pathlib import Path

import numpy, torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

ranks, kind, die = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def train(s):
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6, shuffle=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with open("settings.json", "w") as file:
        json.dump({"rate": 0.05, "run": "again" if die < 0 else "first"}, file)
    with open("log.csv", "w") as file:
        file.write("epoch,loss\\n")
    kept = open("kept.csv", "w")
    print("epoch,loss", file=kept, flush=True)
    logging.basicConfig(filename="train.log", format="%(message)s", level="INFO", force=True)
    steps = 0
    for epoch in s.epochs(4) if kind == "epochs" else range(4):
        total = 0.0
        for a, b in loader:
            optimizer.zero_grad()
            loss = (model(a) - b).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.item()
            steps += 1
            if die == epoch and steps == 11:
                os.kill(os.getpid(), signal.SIGKILL)
        with open("log.csv", "a") as file:
            file.write(f"{epoch},{total:.9f}\\n")
        print(f"{epoch},{total:.9f}", file=kept, flush=True)
        logging.info("epoch %d: %.9f", epoch, total)
        numpy.savetxt("last.txt", [total])
        if Path("last.pt").exists():
            os.replace("last.pt", "previous.pt")
        torch.save(total, "new.pt")
        os.replace("new.pt", "last.pt")
        shutil.copyfile("last.pt", f"epoch-{epoch}.pt")
    kept.close()

with session(devices=ranks, batch="global", checkpoint="kept", every_n_steps=5) as s:
    train(s)
"""


@pytest.mark.parametrize("kind", ["range", "epochs"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_files_of_a_killed_run(run: Any, tmp_path: Path, ranks: int, kind: str) -> None:
    """Rows and files of finished epochs stay as they were, and are not written again."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(LOOP, ranks, kind, -1, folder=whole).ok()
    assert run(LOOP, ranks, kind, 2, folder=killed).status != 0
    assert (killed / "log.csv").read_text().count("\n") == 3
    run(LOOP, ranks, kind, -1, folder=killed).ok()
    assert contents(killed) == contents(whole)


def contents(folder: Path) -> dict[str, object]:
    """What the files hold. Those of torch hold the name that they had when they were written."""
    return {
        one.name: torch.load(one) if one.suffix == ".pt" else one.read_text()
        for one in folder.iterdir()
        if one.is_file()
    }
