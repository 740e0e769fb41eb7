"""What a script writes itself, with numbers of its own, is the same in a run that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torchbus_testing.forking import fork_script

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


HEAD = """
import csv, json, os, shutil, signal, sys, tempfile, zipfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

ranks, die = int(sys.argv[1]), int(sys.argv[2])

def train(s, epochs):
    global model
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6, shuffle=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    before()
    steps = 0
    for epoch in epochs(4):
        total = 0.0
        for a, b in loader:
            optimizer.zero_grad()
            loss = (model(a) - b).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.item()
            steps += 1
            if die == steps:
                os.kill(os.getpid(), signal.SIGKILL)
        after(epoch, f"{epoch} {total:.6f}\\n")
"""
FOOT = """
with session(devices=ranks, batch="global", checkpoint="kept", every_n_steps=5) as s:
    train(s, range)
"""
WRITING = {
    "appends and reads": """
        with open("log.txt", "a+") as file:
            file.write(row)
            file.seek(0)
            assert file.read().endswith(row)
    """,
    "overwrites a part": """
        with open("table.txt", "r+" if os.path.exists("table.txt") else "w+") as file:
            file.seek(len(row) * epoch)
            file.write(row)
    """,
    "writes only new files": """
        with open(f"{epoch}.txt", "x") as file:
            file.write(row)
    """,
    "renames a temporary file": """
        with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
            file.write(row)
        os.replace(src=file.name, dst="last.txt")
    """,
    "removes a temporary file": """
        with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
            file.write(row)
        os.unlink(file.name)
        with tempfile.TemporaryDirectory(dir=".") as folder:
            Path(folder, "row.txt").write_text(row)
        Path("row.txt").write_text(row)
    """,
    "adds to an archive": """
        with zipfile.ZipFile("rows.zip", "a") as file:
            file.writestr(f"{epoch}.txt", row)
        with zipfile.ZipFile("rows.zip") as file:
            Path("rows.txt").write_bytes(b"".join(map(file.read, file.namelist())))
        os.remove("rows.zip") if epoch == 3 else None
    """,
    "makes a folder": """
        os.mkdir(f"folder-{epoch}")
        Path(f"folder-{epoch}/row.txt").write_text(row)
        Path(f"row-{epoch}.txt").write_text(Path(f"folder-{epoch}/row.txt").read_text())
    """,
}


def both_runs(run: Any, tmp_path: Path, script: str, ranks: int) -> list[dict[str, object]]:
    """The files of a run that was not killed, and of one that was, in epoch 2."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(script, ranks, -1, folder=whole).ok()
    assert run(script, ranks, 11, folder=killed).status != 0
    run(script, ranks, -1, folder=killed).ok()
    found = contents(whole)
    assert found and all(found.values())
    return [found, contents(killed)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", WRITING)
def test_each_way_to_write_after_an_epoch(run: Any, tmp_path: Path, kind: str, ranks: int) -> None:
    """Epochs that are replayed leave no trace in files."""
    parts = f"def before(): pass\n\ndef after(epoch, row):{WRITING[kind]}"
    whole, killed = both_runs(run, tmp_path, f"{HEAD}\n{parts}\n{FOOT}", ranks)
    assert killed == whole


BEFORE = {
    "clears its folder": """
def before():
    if os.path.exists("out"):
        shutil.rmtree("out")
    os.makedirs("out")

def after(epoch, row):
    Path(f"out/{epoch}.txt").write_text(row)
    Path("rows.txt").write_text("".join(one.read_text() for one in sorted(Path("out").iterdir())))
""",
    "begins a list that epochs extend": """
def before():
    Path("rows.json").write_text("[]")

def after(epoch, row):
    rows = json.loads(Path("rows.json").read_text())
    Path("rows.json").write_text(json.dumps([*rows, row]))
""",
    "does not flush its file": """
def before():
    global opened, writer, rows
    opened = [open("writer.csv", "w")]
    writer = csv.writer(opened[0])
    rows = open("rows.csv", "w")

def after(epoch, row):
    writer.writerow([row])
    rows.write(row)
    if epoch == 3:
        opened[0].close()
        rows.close()
""",
    "has opened files before the block": """
import logging
logging.basicConfig(filename="train.log", level="INFO", format="%(message)s")
rows, table = open("rows.txt", "a"), csv.writer(open("table.csv", "a"))

def before():
    pass

def after(epoch, row):
    logging.info(row)
    rows.write(row)
    table.writerow([row])
""",
    "renews a link and a mark": """
def before():
    for made in (Path("latest"), Path("mark")):
        if made.is_symlink() or made.exists():
            made.unlink()
    os.symlink("run", "latest")
    Path("mark").touch(exist_ok=False)
    Path("mark").write_text("begun")

def after(epoch, row):
    with open("rows.txt", "a") as file:
        file.write(row)
""",
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", BEFORE)
def test_what_is_written_before_and_after(run: Any, tmp_path: Path, kind: str, ranks: int) -> None:
    """Rows of finished epochs remain, whatever the script does before its loop."""
    whole, killed = both_runs(run, tmp_path, f"{HEAD}\n{BEFORE[kind]}\n{FOOT}", ranks)
    assert killed == whole


WRITER = "from torch.utils.tensorboard import SummaryWriter"


@pytest.mark.parametrize("place", ["above", "inside"])
def test_a_writer_of_the_script_gets_each_epoch_once(run: Any, tmp_path: Path, place: str) -> None:
    """Values of replayed epochs, which are those of no batches, don't reach TensorBoard."""
    pytest.importorskip("tensorboard")
    parts = f"""
{WRITER if place == "above" else ""}

def before():
    global writer
    {WRITER if place == "inside" else ""}
    writer = SummaryWriter("events")

def after(epoch, row):
    writer.add_scalar("epoch", epoch, epoch)
    writer.add_histogram("gradient", model.weight.grad, epoch)
    writer.flush()
    Path("row.txt").write_text(row)
"""
    both_runs(run, tmp_path, f"{HEAD}\n{parts}\n{FOOT}", 1)
    found = sorted(
        event.step
        for file in (tmp_path / "killed" / "events").iterdir()
        for event in events(file)
        for value in event.summary.value
        if value.tag == "epoch"
    )
    assert found == [0, 1, 2, 3]


SETS_ITS_FUNCTION = """
import types, warnings
warnings.simplefilter("error")
wandb = sys.modules["wandb"] = types.ModuleType("wandb")

class Run:
    def log(self, row):
        with open("rows.txt", "a") as file:
            file.write(row)

def init():
    wandb.log = Run().log

wandb.Run, wandb.init, wandb.log = Run, init, lambda row: None

def before(): wandb.init()
def after(epoch, row): wandb.log(row)
"""


def test_a_tracker_that_sets_its_function_again(run: Any, tmp_path: Path) -> None:
    """As wandb.init sets wandb.log: during the replay, and no warning says that code did it."""
    whole, killed = both_runs(run, tmp_path, f"{HEAD}\n{SETS_ITS_FUNCTION}\n{FOOT}", 1)
    assert killed == whole


def events(file: Path) -> Any:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return EventFileLoader(str(file)).Load()


LATE = """
import builtins, logging, sys, torch
from torch.utils.data import DataLoader
from torchbus import session

with session(devices=int(sys.argv[1]), batch="global", checkpoint="kept", every_n_steps=3) as s:
    logging.getLogger().addHandler(logging.FileHandler("late.log", delay=True))
    if sys.argv[3] == "wraps":  # a library's own open, which stays
        inner = builtins.open
        builtins.open = lambda *args, **kwargs: inner(*args, **kwargs)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    steps = 0
    for epoch in range(3):
        for x in DataLoader(torch.ones(8, 1), 2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            steps += 1
            if steps == int(sys.argv[2]):
                raise KeyError("power cut")
        logging.warning("%d", epoch)
"""


@pytest.mark.parametrize(("ranks", "how"), [(1, "alone"), (2, "alone"), (1, "wraps")])
def test_a_handler_that_opens_its_file_after_the_resume(
    tmp_path: Path, ranks: int, how: str
) -> None:
    """The checkpoint is of the first epoch, and the killed run has already made the file."""
    assert fork_script(LATE, ranks, 5, how, cwd=tmp_path).status
    assert fork_script(LATE, ranks, 0, how, cwd=tmp_path).ok()
    assert (tmp_path / "late.log").read_text() == "0\n0\n1\n2\n"


AGAIN = """
def before(): pass

def after(epoch, row):
    os.makedirs(f"folder-{epoch}")
    Path(f"{epoch}.txt").write_text(row)
    if epoch:
        os.remove(f"{epoch - 1}.txt")
    if die == 100 + epoch:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_that_run_again_find_their_files_removed(
    run: Any, tmp_path: Path, ranks: int
) -> None:
    """The killed run had removed a file, and made a folder, after its last checkpoint."""
    script = f"{HEAD}\n{AGAIN}\n{FOOT}"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(script, ranks, -1, folder=whole).ok()
    assert run(script, ranks, 102, folder=killed).status != 0
    run(script, ranks, -1, folder=killed).ok()
    assert contents(killed) == contents(whole)
    assert [*contents(whole)] == ["3.txt"]


AWAY = """
def before():
    if os.path.exists("out"):
        shutil.move("out", "old")
    os.mkdir("out")

def after(epoch, row):
    Path("out/row.txt").write_text(row)
    Path("row.txt").write_text(row)
"""


def test_a_folder_that_the_script_moves_away_first(run: Any, tmp_path: Path) -> None:
    """Rank 0 moves the folder of the killed run, and no rank moves the new one."""
    both_runs(run, tmp_path, f"{HEAD}\n{AWAY}\n{FOOT}", 2)
    made = sorted(str(one.relative_to(tmp_path / "killed")) for one in tmp_path.glob("killed/o*/*"))
    assert made == ["old/row.txt", "out/row.txt"]
