"""Set up and run, on any machine with Python 3.10 or later and pip::

    python make.py demo                  # the digits example, on one and on two ranks, compared
    python make.py test                  # ruff, mypy and the tests
    python make.py test -m slow          # further words go to pytest
    python make.py test --torch 2.6.0    # only the tests, with another torch; also: --torch newest
    python make.py versions 2.6.0 2.9.1  # a loop on two ranks with each torch; without: the window
    python make.py quick plugins/ddp     # ruff, mypy and the fast tests of one package, in a minute
    python make.py faults --first 107    # jobs with faults; without --first: 2,240 of them, hours
    python make.py docs                  # the documentation as a site, in site/; --serve shows it
    python make.py release 0.2.0 --dry-run   # build and try all packages; without it, also tag
    python make.py gpu                   # on a machine with a GPU: its tests and measurements

Everything is installed into ``.venv``, which is used again as long as what it was made from is
unchanged. Each other torch has a separate environment, ``.venv-torch-2.6.0``, and so has the
site, ``.venv-docs``.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    found = ".".join(map(str, sys.version_info[:2]))
    sys.exit(f"torchbus needs Python 3.10 or later; this is Python {found}")

import argparse
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from release import versions
from release.environment import NEWEST, Environment, say

ROOT = Path(__file__).resolve().parent
QUICK_S = 50.0
PYTEST_AT_LEAST_S = 15.0
SCRIPTS_WITH_TYPES = (ROOT / "tests/house/typed", ROOT / "examples/gallery")
Words = Sequence["str | Path"]


def demo(environment: Environment, words: Words) -> int:
    return environment.run("examples/compare.py", *words)


def test(environment: Environment, words: Words) -> int:
    """mypy runs beside the tests, which often wait for the processes that they start."""
    types = environment.start(*types_of(environment.packages, *SCRIPTS_WITH_TYPES))
    statuses = style(environment, Path("."))
    statuses["pytest"] = environment.pytest("--dist", "loadfile", "--durations=40", *words)
    say("mypy")
    print(types.communicate()[0], end="")
    return verdict({**statuses, "mypy": types.returncode})


def faults(environment: Environment, words: Words) -> int:
    """Judge how jobs end in which a rank has a fault."""
    return environment.run("tests/ways_out/fault_matrix.py", *words)


def docs(environment: Environment, words: Words) -> int:
    """Build the site, where a broken link or an unknown name is an error. Or serve it."""
    return environment.run("docs/site/build.py", *words)


def test_with_another_torch(environment: Environment, words: Words) -> int:
    """Only the tests: the sources are checked against the types of the torch that is pinned."""
    environment.run("-c", "import torch; print('torch', torch.__version__)")
    if environment.left_out:
        names = ", ".join(folder.name for folder in environment.left_out)
        say(f"left out, because they need a newer torch: {names}, and tests/, which needs all")
        if not any((ROOT / word.partition("::")[0]).exists() for word in map(str, words)):
            words = [*(folder / "tests" for folder in environment.packages), *words]
    return verdict({"pytest": environment.pytest("--dist", "loadfile", *words)})


def quick(environment: Environment, words: Words) -> int:
    """What matters for one package. Tests that were fast the last time come first, and those for
    which no time is left are skipped.
    """
    began = time.monotonic()
    package, *rest = [package_of(Path(words[0])), *words[1:]]
    statuses = style(environment, package)
    statuses["mypy"] = environment.run(*types_of([package]))
    left = max(QUICK_S - (time.monotonic() - began), PYTEST_AT_LEAST_S)
    given: Words = ["-p", "quick", f"--seconds={left:.0f}", package / "tests"]
    return verdict({**statuses, "pytest": environment.pytest("--dist", "load", *given, *rest)})


def package_of(path: Path) -> Path:
    """The package that a file or a folder belongs to."""
    place = path.resolve()
    for folder in (place, *place.parents):
        if (folder / "pyproject.toml").is_file() and (folder / "src").is_dir():
            return folder
    sys.exit(f"make.py: {path} belongs to no package: name a folder such as plugins/ddp or core")


def style(environment: Environment, path: Path) -> dict[str, int]:
    return {
        "ruff": environment.run("-m", "ruff", "check", path),
        "format": environment.run("-m", "ruff", "format", "--check", "--quiet", path),
    }


def types_of(packages: list[Path], *more: Path) -> list[str | Path]:
    """The words that start mypy. ``more``: files beside the packages."""
    sources = [folder for package in packages for folder in sorted(package.glob("src/*/"))]
    return ["-m", "mypy", *sources, *more]


def release(environment: Environment, words: Words) -> int:
    return environment.run("-m", "release", "release", *words)


def dists(environment: Environment, words: Words) -> int:
    """What ``release`` builds, for the version that the checkout has."""
    return environment.run("-m", "release", "dists", *words)


def verdict(statuses: dict[str, int]) -> int:
    failed = [name for name, status in statuses.items() if status]
    say(f"failed: {', '.join(failed)}" if failed else "all passed")
    return int(bool(failed))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Set up torchbus in a separate environment; run its demo, tests or site.",
        add_help=sys.argv[1:2] in ([], ["-h"], ["--help"]),
        allow_abbrev=False,
    )
    parser.add_argument("what", choices=(*RUNS, "gpu", "versions"), help="what to run")
    parser.add_argument("--torch", metavar="VERSION", help=f"test: another torch, or '{NEWEST}'")
    given, words = parser.parse_known_args()
    if given.torch and given.what != "test":
        parser.error("--torch belongs to test")
    if given.what == "quick" and not words:
        parser.error("quick takes a path, such as plugins/ddp")
    if given.what == "gpu":  # with the torch of this Python, which may be built for its GPU
        return subprocess.call([sys.executable, ROOT / "benchmarks" / "gpu" / "run.py", *words])
    if given.what == "versions":
        return versions.run(words)
    purpose = given.what if given.what in ("demo", "docs") else "test"
    environment = Environment(purpose, given.torch)
    try:
        environment.set_up()
    except subprocess.CalledProcessError as error:
        what = " ".join(map(str, error.cmd))
        say(f"could not set up {environment.folder}: {what} failed, see above")
        return 1
    run = test_with_another_torch if given.torch else RUNS[given.what]
    return run(environment, words)


RUNS = {run.__name__: run for run in (demo, test, quick, faults, docs, release, dists)}


if __name__ == "__main__":
    sys.exit(main())
