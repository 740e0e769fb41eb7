"""Files of objects that exist before the block, or hold them open when it ends."""

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


def test_a_log_handler_that_opens_its_file_in_the_block_writes_a_line_once(tmp_path: Path) -> None:
    """A rotating one renames it, too."""
    fork_script(
        """
        import logging, logging.handlers
        from torchbus import session

        one = logging.FileHandler("run.log", delay=True)
        rotating = logging.handlers.RotatingFileHandler("r.log", delay=True, maxBytes=12, backupCount=9)
        logging.basicConfig(level="INFO", format="%(message)s", handlers=[one, rotating])
        with session(devices=2) as s:
            for epoch in range(4):
                logging.info("epoch %d", epoch)
        logging.info("after")
        """,
        cwd=tmp_path,
    ).ok()
    lines = [f"epoch {epoch}" for epoch in range(4)]
    assert (tmp_path / "run.log").read_text().split("\n") == [*lines, "after", ""]
    rotated = sorted(tmp_path.glob("r.log*"), reverse=True)
    assert [path.read_text().strip() for path in rotated] == [*lines, "after"]
