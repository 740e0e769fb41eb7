"""Sessions that are left in some way: leaving.py FOLDER LAUNCH RANKS WHO HOW [WHO HOW ...].

Rank WHO does it, at its fourth step; in some ways all of them do. FOLDER gets a file ``left`` when
that happens, ``finally<rank>`` for each ``finally`` that ran, ``after`` with a line for each
process that goes on after the block, and ``state``, which is empty if torch is as it was. LAUNCH
"command": under ``torchbus run``. Of several ways, each has a folder of its own, 0, 1, ..., with
rank 0's exception in ``error``.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torchbus import session
from torchbus.session import Session, current

from torchbus_testing.state import assert_torch_unchanged, torch_state

gc.freeze()  # a session looks through all objects; those of torch need not be among them

ALL_DO = ("normal", "break", "return", "exit 0")
STEPS, AT = 6, 3


def train(s: Session, who: int, how: str, folder: Path) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10**9 if how == "endless" else STEPS):
        if step == AT:
            if s.rank == who:
                os.mknod(folder / "left")  # past what ranks do together
            if s.rank == who or how in ALL_DO:
                if how == "break":
                    break
                if how == "return":
                    return
                leave(how)
            elif how.endswith(" others sleep"):
                time.sleep(60)
            elif how.endswith(" others compute"):
                while True:
                    torch.ones(3).sum()
        optimizer.zero_grad()
        model(torch.randn(4, 3)).mean().backward()
        optimizer.step()
    if how == "uneven" and s.rank == who:
        model(torch.randn(4, 3)).mean().backward()


def leave(how: str) -> None:
    match how.split():
        case ["raise", *_]:
            raise ValueError("boom")
        case ["exit", "boom"]:
            sys.exit("boom")
        case ["exit", code, *_]:
            sys.exit(int(code))
        case [name, "in", "backward", *_]:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.Signals[name])).start()
        case [name, *_] if name.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[name])


def block(folder: Path, who: int, how: str) -> None:
    s = current()
    assert s is not None
    try:
        train(s, who, how, folder)
    finally:
        (folder / f"finally{s.rank}").touch()


def run(folder: Path, launch: str, ranks: int, who: int, how: str) -> None:
    before, rank = torch_state(), None
    options = {"strategy": "ddp", "devices": ranks, "accelerator": "cpu", "launch": launch}
    try:
        if launch == "spawn":
            rank = 0
            session(**options)(block)(folder, who, how)
        else:
            with session(**options) as s:
                rank = s.rank
                block(folder, who, how)
        with (folder / "after").open("a") as file:
            print(rank, file=file)
    finally:
        if rank == 0:
            (folder / "state").write_text(difference(before))


def difference(before: dict[str, object]) -> str:
    try:
        assert_torch_unchanged(before)
    except AssertionError as error:
        return str(error)
    return ""


def run_in_a_row(folder: Path, launch: str, ranks: int, ways: list[str]) -> None:
    for number, (who, how) in enumerate(zip(ways[::2], ways[1::2], strict=True)):
        own = folder / str(number)
        own.mkdir()
        error: BaseException | None = None
        try:
            run(own, launch, ranks, int(who), how)
        except BaseException as raised:
            error = raised
        (own / "error").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    words = (Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    if words[1] == "command":
        block(words[0], int(sys.argv[4]), sys.argv[5])
    elif len(sys.argv) == 6:
        run(*words, int(sys.argv[4]), sys.argv[5])
    else:
        run_in_a_row(*words, sys.argv[4:])
