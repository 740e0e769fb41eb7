"""Writes, renames and removes files in a mirror; prints which ones the mirror has noted."""

import os
import shutil
import sys
from pathlib import Path

import torch

from torchbus_verify.runs.writes import FolderMirror, RunWrites

own = Path(sys.argv[1])
mirror = FolderMirror(Path(sys.argv[2]), own / "work")
mirror.make()
RunWrites(mirror, own, print).install()
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
