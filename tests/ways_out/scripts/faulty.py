"""A training script with one fault: faulty.py FOLDER FAULT PHASE RANK [OPTIONS].

OPTIONS: those of the session, as JSON; without them ``torchbus run`` has begun one. FOLDER gets
``at`` at the moment of the fault, ``log<rank>`` with a line for each step of a rank, written like
any file, ``steps<rank>`` with a byte for each of them, ``finally<rank>``, and ``model.pt``, which
is saved before the first step and at the end. Temporary files are in FOLDER/tmp.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from torchbus import session
from torchbus.session import Session, current

FOLDER, FAULT, PHASE, RANK = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
STEPS, SHARE = 6, 2
SWALLOWED = Exception if FAULT == "swallowed" else ()
rank = -1


class Data(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 2 * SHARE * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= len(self) // 2 and torch.utils.data.get_worker_info() is not None:
            fault("worker")
        return torch.full((3,), float(index)).cos()


class Saved:
    """Has the fault while it is pickled."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        fault("save")
        return (OrderedDict, ())


def fault(phase: str, backward: Callable[[], None] = lambda: None) -> None:
    if (phase, rank) != (PHASE, RANK):
        return
    os.mknod(FOLDER / "at")  # past what ranks do together
    match FAULT.split():
        case ["raise" | "swallowed"]:
            raise ValueError(f"the fault of rank {rank}")
        case ["exit", status]:
            sys.exit(int(status))
        case ["_exit", status]:
            os._exit(int(status))
        case ["backward"]:
            backward()
        case ["stuck"]:
            time.sleep(1000)
        case [name]:
            os.kill(os.getpid(), signal.Signals[name])


def save(model: torch.nn.Module, more: object) -> None:
    torch.save({"model": model.state_dict(), "more": more}, FOLDER / "model.pt")


def train(steps: int) -> None:
    fault("before the first step")
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())
    save(model, None)
    workers = int(PHASE == "worker")
    with open(FOLDER / f"log{rank}", "w") as log:
        loader = DataLoader(Data(), batch_size=SHARE, num_workers=workers)
        phases = {0: "first batch", len(loader) // 2: "middle", len(loader) - 1: "last step"}
        for step, x in enumerate(loader):
            try:
                fault(phases.get(step, ""), lambda x=x: model(x).mean().backward())
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
            except SWALLOWED:
                continue
            print("step", step, file=log, flush=True)
            os.write(steps, b".")
        model.eval()
        with torch.no_grad():
            for x in DataLoader(Data(), batch_size=SHARE):
                model(x)
                fault("evaluation")
        if rank:
            fault("save")  # another rank than 0 need not pickle
        save(model, Saved())
        fault("after the loop", lambda: model.train()(x).mean().backward())


def run(s: Session) -> None:
    global rank
    rank = s.rank
    steps = os.open(FOLDER / f"steps{rank}", os.O_CREAT | os.O_WRONLY)
    try:
        train(steps)
    finally:
        fault("finally")
        (FOLDER / f"finally{rank}").touch()


if __name__ == "__main__":
    tempfile.tempdir = os.environ["TMPDIR"] = str(FOLDER / "tmp")
    begun = current()
    with contextlib.nullcontext(begun) if begun else session(**json.loads(sys.argv[5])) as s:
        run(s)
