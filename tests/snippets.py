"""Run the Python code of pages of documentation, each block as a script of its own::

    python tests/snippets.py docs/semantics.md
    python tests/snippets.py --update docs/semantics.md    # write down what was printed

Blocks that begin with three backquotes and ``python`` are run, in an empty folder. A block marked
``text`` that follows directly is what the script must print, where "..." stands for any part of a
line. Blocks marked ``python no-run`` are left out.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from torchbus_testing.fork_process import become

FIRST_PAGE = Path(__file__).resolve().parents[1] / "README.md"
"""Its output must fit the column of the site; the output of others may wrap."""
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n*```text\n(?P<text>.*?)^```$)?", re.M | re.S
)


@dataclass
class Snippet:
    page: Path
    line: int
    code: str
    expected: str | None

    def run(self) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of the code as ``__main__`` of a forked process, in an
        empty folder.
        """
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "snippet.py"
            script.write_text(self.code)
            with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
                pid = os.fork()
                if pid == 0:
                    os.environ["COLUMNS"] = "80" if self.page == FIRST_PAGE else "100"
                    become(script, [], script.parent, out.fileno(), err.fileno())
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                out.seek(0)
                err.seek(0)
                return status, out.read(), err.read()


def find(page: Path) -> list[Snippet]:
    """The blocks of a page that are to be run."""
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(
            page.resolve(), text.count("\n", 0, match.start()) + 2, match["code"], match["text"]
        )
        for match in BLOCK.finditer(text)
    ]


def check(snippet: Snippet) -> str:
    """Run one block. Returns what is wrong, "" if nothing is."""
    status, out, err = snippet.run()
    where = f"{snippet.page}:{snippet.line}"
    if status:
        return f"{where}: exit status {status}\n{out}{err}"
    if snippet.expected is not None and not matches(out, snippet.expected):
        difference = difflib.unified_diff(
            snippet.expected.splitlines(),
            out.splitlines(),
            "the page says",
            "it prints",
            lineterm="",
        )
        return f"{where}:\n" + "\n".join(difference) + f"\n{err}"
    return ""


def matches(out: str, expected: str) -> bool:
    pattern = ".*".join(map(re.escape, expected.split("...")))
    return bool(re.fullmatch(re.sub(r"\\\n\.\*(?=\\\n|$)", r"(?:\\n.*)*", pattern), out))


def update(page: Path) -> None:
    """Write what the blocks print into the page."""

    def block(match: re.Match[str]) -> str:
        text = match.group()
        if match["text"] is None:
            return text
        status, out, _ = Snippet(page, 0, match["code"], None).run()
        return (
            text
            if status or matches(out, match["text"])
            else text[: match.start("text") - match.start()] + out + "```"
        )

    page.write_text(BLOCK.sub(block, page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the Python code of pages of documentation.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument(
        "--update",
        action="store_true",
        help="write what the code prints into the pages, where they show it",
    )
    given = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # two ranks on any machine
    os.environ.pop("OMP_NUM_THREADS", None)
    if given.update:
        for page in given.pages:
            update(page)
    wrong = []
    for snippet in [snippet for page in given.pages for snippet in find(page)]:
        started_s = time.monotonic()
        wrong.append(check(snippet))
        seconds = time.monotonic() - started_s
        print(wrong[-1] or f"{snippet.page}:{snippet.line}: ok ({seconds:.1f} s)", flush=True)
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
