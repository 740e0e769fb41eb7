"""A run reads its folder as it is, and writes into a folder of its own."""

from __future__ import annotations

from torchbus.testing import fork_script

SCRIPT = """
import os, shutil, sys
from pathlib import Path
import torch
from torchbus_verify.runs.mirror import Mirror
from torchbus_verify.runs.writes import Writes

own = Path(sys.argv[1])
mirror = Mirror(Path(sys.argv[2]), own / "work")
mirror.make()
Writes(mirror, own, print).install()
os.chdir(mirror.place)

assert Path("data/deep/a.txt").read_text() == "a" and not mirror.written()
with open("log.txt", "a") as file:
    file.write("more")
torch.save([1], "model.pt")
Path("data/new.txt").write_text("new")
os.remove("data/deep/a.txt")
os.rename("old.txt", "renamed.txt")
shutil.rmtree("gone")
os.makedirs("runs/one")
Path("renamed.txt").write_text("changed")
assert Path("log.txt").read_text() == "begun, more" and torch.load("model.pt") == [1]
assert Path("data/deep/b.txt").read_text() == "b" and not Path("data/deep/a.txt").exists()
print(*sorted(map(str, mirror.written())))
"""


def test_only_the_mirror_is_written(tmp_path):
    original, own = tmp_path / "original", tmp_path / "own"
    files = {
        "log.txt": "begun, ",
        "model.pt": "kept",
        "old.txt": "old",
        "data/deep/a.txt": "a",
        "data/deep/b.txt": "b",
        "gone/c.txt": "c",
    }
    for name, text in files.items():
        (original / name).parent.mkdir(parents=True, exist_ok=True)
        (original / name).write_text(text)
    result = fork_script(SCRIPT, own, original, cwd=tmp_path).ok()
    assert result.stdout.split() == ["data/new.txt", "log.txt", "model.pt", "renamed.txt"]
    left = {
        str(path.relative_to(original)): path.read_text()
        for path in original.rglob("*")
        if path.is_file()
    }
    assert left == files
