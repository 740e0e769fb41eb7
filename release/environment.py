"""The virtual environments of make.py, which are used again as long as what they are made from is
unchanged.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from release import tree

ROOT = Path(__file__).resolve().parents[1]
WORKERS = "3"  # for two cores: a test often waits for the processes that it starts
OF_DEMO = ("redaction", "device", "launch", "rank0", "strategy", "sampler", "ddp")
NEWEST = "newest"
NEVER_IMPORTED = r"[/\\](tests|transformers[/\\]models)[/\\]"
"""Installed files that tests hardly import. To compile them takes longer than to import some."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with all that the demo, the tests or the site need."""

    purpose: str
    torch: str | None = None
    """Its version; None is the one that the requirements pin."""

    @property
    def folder(self) -> Path:
        if self.purpose == "docs":
            return ROOT / ".venv-docs"
        if self.purpose == "versions":
            return ROOT / f".venv-versions-{self.torch}"
        return ROOT / (".venv" if self.torch is None else f".venv-torch-{self.torch}")

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def packages(self) -> list[Path]:
        """The folders of the packages to install, the core first. The site only reads them."""
        if self.purpose == "docs":
            return []
        if self.purpose in ("demo", "versions"):
            names = ["core", *(f"plugins/{name}" for name in OF_DEMO)]
            names += ["plugins/accumulate", "plugins/amp"] if self.purpose == "versions" else []
            return [ROOT / name for name in names]
        return [one for one in tree.packages(ROOT) if one not in self.left_out]

    @property
    def left_out(self) -> list[Path]:
        """The folders of the packages that need a newer torch."""
        if self.torch in (None, NEWEST):
            return []
        return [one for one in tree.packages(ROOT) if tree.torch_of(one) > tree.numbers(self.torch)]

    def requirements(self) -> str:
        """What pip installs, with the torch of this environment."""
        docs, demo, test = (
            (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
            for name in ("docs", "demo", "test")
        )
        if self.purpose == "docs":
            return docs
        lines = demo.splitlines()
        if self.purpose == "test":
            lines += [line for line in test.splitlines() if not line.startswith("-r ")]
        lines = [line for line in lines if self._is_new_enough_for(line)]
        if self.torch is not None:
            other = "torch" if self.torch == NEWEST else f"torch=={self.torch}"
            lines = [other if line.startswith("torch==") else line for line in lines]
        return "\n".join([*lines, ""])

    def _is_new_enough_for(self, line: str) -> bool:
        """Whether this torch is what the comment of a requirement says that it needs."""
        needed = re.search(r"# torch>=([\d.]+)", line)
        return (
            not needed
            or self.torch in (None, NEWEST)
            or tree.numbers(self.torch) >= tree.numbers(needed[1])
        )

    def fingerprint(self) -> str:
        """Changes with all that the environment is made from: Python, place, requirements, and what
        the packages declare.
        """
        declared = [
            (folder / "pyproject.toml").read_text(encoding="utf-8") for folder in self.packages
        ]
        version = (ROOT / tree.VERSION).read_text(encoding="utf-8")
        text = "\n".join([sys.version, str(ROOT), self.requirements(), version, *declared])
        return hashlib.sha256(text.encode()).hexdigest()

    def set_up(self) -> None:
        """Make it fit for its purpose, unless it is so already. The newest torch is looked up each
        time.
        """
        mark, state = self.folder / f"ready-for-{self.purpose}", self.fingerprint()
        ready = self.python.exists() and mark.is_file() and mark.read_text() == state
        if ready and self.torch != NEWEST:
            return
        say(f"setting up {self.folder} (the first time, pip downloads torch)")
        if not self._has_pip():
            venv.create(self.folder, clear=True, with_pip=True)
        pip: list[str | Path] = [self.python, "-m", "pip", "install", "--disable-pip-version-check"]
        pip += ["--no-compile"]  # it would use one core
        listed = self.folder / "requirements.txt"
        listed.write_text(self.requirements(), encoding="utf-8")
        upgrade = ["--upgrade"] if self.torch == NEWEST else []
        subprocess.run([*pip, *upgrade, "-r", listed], check=True)
        self._compile(self.folder, "-x", NEVER_IMPORTED)
        editable: list[str | Path] = [word for folder in self.packages for word in ("-e", folder)]
        pip += ["--quiet", "--no-build-isolation", "--no-deps"]
        if editable:
            subprocess.run([*pip, *editable], check=True)
        mark.write_text(state)

    def _compile(self, *words: str | Path) -> None:
        """Compile what is there on all cores: each process of a test would repeat it if Python
        writes no bytecode.
        """
        # some packages have files of other versions of Python
        subprocess.run(
            [self.python, "-m", "compileall", "-q", "-j", "0", *words], stdout=subprocess.DEVNULL
        )

    def _has_pip(self) -> bool:
        look = [str(self.python), "-m", "pip", "--version"]
        return self.python.exists() and not subprocess.run(look, capture_output=True).returncode

    def run(self, *words: str | Path) -> int:
        say(" ".join(map(str, words)))
        return subprocess.run([self.python, *map(str, words)], cwd=ROOT).returncode

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        """Run it beside what follows. Its output waits in a pipe until it is read."""
        command = [self.python, *map(str, words)]
        out, both = subprocess.PIPE, subprocess.STDOUT
        return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=both, text=True)

    def pytest(self, *words: str | Path) -> int:
        self._compile(*(folder / "src" for folder in self.packages))
        return self.run("-m", "pytest", "-n", WORKERS, *words)


def say(text: str) -> None:
    print(f"make.py: {text}", flush=True)
