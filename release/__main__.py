"""Release a version, or build the files of the version that the checkout has."""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
from pathlib import Path

from release import dists, tree, trial

ROOT = Path(__file__).resolve().parent.parent
TRAIN = "tests/house/scripts/packaged_train.py"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    release = commands.add_parser("release", help="write the version, build, try, commit and tag")
    release.add_argument("version", help="such as 0.2.0")
    release.add_argument("--dry-run", action="store_true", help="change nothing in the checkout")
    release.add_argument("--to", type=Path, help="where the files go (default: dist)")
    release.set_defaults(run=_release)
    files = commands.add_parser("dists", help="build and try the version of the checkout")
    files.add_argument("--to", type=Path, default=ROOT / "dist", help="where the files go")
    files.set_defaults(run=lambda given: _make(ROOT, given.to))
    given = parser.parse_args()
    try:
        given.run(given)
    except tree.Refused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _release(given: argparse.Namespace) -> None:
    refuse_unclean(ROOT, given.version)
    day = datetime.datetime.now(datetime.timezone.utc).date()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "checkout")
        dists.copy(ROOT, copy)
        tree.write(copy, given.version, day)
        files = Path(scratch, "dist") if given.dry_run else ROOT / "dist"
        _make(copy, given.to or files)
    if given.dry_run:
        print(f"release: {given.version} could be released; nothing was changed")
        return
    commit(ROOT, given.version, day)
    print("release: committed and tagged; to publish, run git push --follow-tags")


def commit(root: Path, version: str, day: datetime.date) -> None:
    """Write the version into a checkout, commit it and tag it."""
    tree.write(root, version, day)
    _git(root, "commit", "-qam", f"Release {version}")
    _git(
        root,
        "tag",
        "-a",
        f"v{version}",
        "--cleanup=verbatim",
        "-m",
        f"{version}\n\n{tree.notes(root)}",
    )


def _make(root: Path, to: Path) -> None:
    """Build, and try what was built."""
    files = dists.build_twice(root, to)
    print(f"release: {len(files)} files, twice with the same bytes", flush=True)
    trial.check_metadata(files)
    trial.install_each(root, to)
    trial.install_all(root, to, ROOT / TRAIN)


def refuse_unclean(root: Path, version: str) -> None:
    """Refuse changes that are not committed, and a version that has a tag."""
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    if changed:
        raise tree.Refused(f"commit or stash these changes first:\n{changed}")
    if _git(root, "tag", "--list", f"v{version}"):
        raise tree.Refused(f"there is a tag v{version} already: choose another version")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise tree.Refused(f"git {' '.join(words)} failed:\n{done.stderr}")
    return done.stdout.rstrip()


if __name__ == "__main__":
    sys.exit(main())
