"""`torchbus plugins --check`: versions that don't fit each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchbus_cli.plugins import fits
from torchbus_testing.environments import empty_environment
from torchbus_testing.scripts import run


@pytest.mark.parametrize(
    ("version", "wanted", "answer"),
    [
        ("0.2.0", ">=0.2,<0.3", True),
        ("0.2.7", ">=0.2,<0.3", True),
        ("0.3.0", ">=0.2,<0.3", False),
        ("0.1.9", ">=0.2,<0.3", False),
        ("0.10.0", ">=0.9,<0.11", True),
        ("0.2", "==0.2.0", True),
        ("0.2.1", "==0.2.*", True),
        ("0.2.1", "!=0.2.1", False),
        ("1.4", "~=1.2", True),
        ("2.0", "~=1.2", False),
        ("0.2.0rc1", ">=0.2", True),
        ("0.2.0", "", True),
    ],
)
def test_a_version_in_a_range(version: str, wanted: str, answer: bool) -> None:
    assert fits(version, wanted) is answer


def add(site: Path, name: str, version: str, *needs: str) -> None:
    """Install a distribution without any file of its own."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in needs)]))


def check(tmp_path: Path, *words: str) -> tuple[int, str]:
    packages = (
        "torchbus",
        "torchbus_cli",
        "torchbus_device",
        "torchbus_launch",
        "torchbus_redaction",
    )
    python = empty_environment(tmp_path / f"environment{len(words)}", *packages)
    told = run(
        [
            python,
            "-c",
            "from torchbus_cli.main import main; raise SystemExit(main())",
            "plugins",
            "--check",
            *words,
        ],
        env={"PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
    )
    return told.status, told.stdout


def test_what_does_not_fit_is_named_with_its_remedy(tmp_path: Path) -> None:
    site = tmp_path / "site"
    add(site, "torchbus", "0.2.0", "torch>=2.4", 'torchbus-old>=9; extra == "old"')
    add(site, "torchbus-fine", "0.2.3", "torchbus>=0.2,<0.3", "torch==1.0")
    add(site, "torchbus-old", "0.1.0", "torchbus (<0.2,>=0.1)")
    add(site, "torchbus-new", "0.3.0", "torchbus>=0.3,<0.4", "torchbus-gone")
    status, told = check(tmp_path)
    assert status == 1
    assert told.splitlines() == [
        'torchbus-new 0.3.0 needs torchbus>=0.3,<0.4, and torchbus 0.2.0 is installed: pip install --upgrade "torchbus>=0.3,<0.4"',
        "torchbus-new 0.3.0 needs torchbus-gone, which is missing: pip install torchbus-gone",
        "torchbus-old 0.1.0 needs torchbus<0.2,>=0.1, and torchbus 0.2.0 is installed: pip install --upgrade torchbus-old",
    ]
    status, told = check(tmp_path, "--json")
    assert status == 1 and len(json.loads(told)) == 3


def test_what_fits_is_status_0(tmp_path: Path) -> None:
    add(tmp_path / "site", "torchbus-fine", "0.2.3", "torch>=2.4")
    status, told = check(tmp_path)
    assert status == 0 and told.endswith("fit\n")
