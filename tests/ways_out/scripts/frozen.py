"""Ranks of which some freeze: frozen.py LAUNCH RANKS WHO HOW FREEZE_TIMEOUT FOLDER.

The ranks WHO ("1", or "0,2"; "-1" for none) do it, at their fourth step; of several ways HOW
("sleep,pipe") one after the other. FOLDER gets a file ``finally<rank>`` for each ``finally`` that
ran.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from torchbus import session
from torchbus.session import Session

gc.freeze()  # a session looks through all objects; those of torch need not be among them


class Data(Dataset[torch.Tensor]):
    """Whose third item stops its worker, or comes from a file whose disk has gone."""

    def __init__(self, how: str, folder: Path) -> None:
        self._how, self._folder = how, folder

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2 and self._how == "worker stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if index == 2 and self._how == "worker's file":
            read_forever(self._folder)
        if self._how == "slow worker":
            time.sleep(1.0)
        return torch.ones(3)


def read_forever(folder: Path) -> None:
    """A named pipe without a writer stands in for a mount whose server has gone."""
    with open(folder / "dead mount") as file:
        file.read()


def freeze(how: str, folder: Path) -> None:
    match how:
        case "SIGSTOP" | "SIGKILL" | "SIGHUP":
            os.kill(os.getpid(), signal.Signals[how])
        case "SIGSTOP with a child":
            helper = subprocess.Popen(["sleep", "1000"])
            helper.send_signal(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        case "lock":
            sum(itertools.repeat(0))  # native code that never gives Python's lock away
        case "file":
            read_forever(folder)
        case "worker stopped" | "worker's file" | "slow worker":
            with torch.no_grad():
                for _ in DataLoader(Data(how, folder), batch_size=1, num_workers=2):
                    pass
        case "sleep":
            time.sleep(4.0)
        case "subprocess":
            subprocess.run(["sleep", "4"], stdout=subprocess.PIPE, check=True)
        case "pipe":
            with os.popen("sleep 4; echo x") as answer:
                answer.read()
        case "python":
            end = time.monotonic() + 4.0
            while time.monotonic() < end:
                pass
        case "native":
            end = time.monotonic() + 4.0
            while time.monotonic() < end:
                torch.linalg.svd(torch.ones(300, 300))
        case "input":
            input()


def stop_all(pids: list[int]) -> None:
    """And continue them later than ``freeze_timeout``, by a process that is none of them."""
    command = f"sleep 1; kill -STOP {' '.join(map(str, pids))}; sleep 6; kill -CONT {' '.join(map(str, pids))}"
    subprocess.Popen(["sh", "-c", command], start_new_session=True)


def train(s: Session, who: list[str], how: str, folder: Path) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        if step == 3 and str(s.rank) in who:
            for way in how.split(","):
                freeze(way, folder)
        if step == 3 and how == "all stopped":
            pids = [int(pid) for pid in s.all_gather(torch.tensor(os.getpid()))]
            if s.is_main:
                stop_all(pids)
            time.sleep(2.0)
        optimizer.zero_grad()
        model(torch.randn(4, 3)).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    launch, ranks, who, how = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4]
    timeout_s, folder = float(sys.argv[5]), Path(sys.argv[6])

    options = {"launch": launch, "devices": ranks} if launch in ("fork", "script") else {}
    with session(
        strategy="ddp", accelerator="cpu", hang_timeout=2.0, freeze_timeout=timeout_s, **options
    ) as s:
        try:
            train(s, who, how, folder)
        finally:
            (folder / f"finally{s.rank}").touch()
    print("done")
