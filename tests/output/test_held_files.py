"""Files that the script's variables hold open when the block ends."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

TEE = """
import sys
from torchbus import session

class Tee:
    def __init__(self):
        self.file, self.out = open("console.log", "a"), sys.stdout

    def write(self, text):
        self.out.write(text)
        self.file.write(text)

    def flush(self):
        self.out.flush()
        self.file.flush()

with session(devices=2, launch="fork"):
    sys.stdout = Tee()
    print("hello", flush=True)
"""


def test_a_rank_does_not_wait_for_a_file_that_rank_0_keeps_open(tmp_path: Path) -> None:
    """Rank 1 restores ``sys.stdout`` at the end, which releases its Tee and closes the file."""
    result = fork_script(TEE, cwd=tmp_path).ok()
    assert result.stdout == "hello\n" and "waiting" not in result.stderr
    assert (tmp_path / "console.log").read_text() == "hello\n"
