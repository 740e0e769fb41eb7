"""A run reads its folder as it is, and writes into a folder of its own."""

from __future__ import annotations

from pathlib import Path

from torchbus.testing import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "mirrored.py"


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
