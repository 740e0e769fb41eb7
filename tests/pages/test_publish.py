"""A version of the site is published beside the others, which the theme's menu lists."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
publish = runpy.run_path(str(ROOT / "docs/site/publish.py"))["publish"]


def test_versions_stand_side_by_side(tmp_path: Path) -> None:
    site, pages = tmp_path / "site", tmp_path / "gh-pages"
    site.mkdir()
    pages.mkdir()
    for number, given in enumerate([("dev",), ("0.9.0", "latest"), ("0.10.0", "latest"), ("dev",)]):
        (site / "index.html").write_text(f"build {number}")
        publish(site, pages, *given)
    listed = [
        (one["version"], one["aliases"])
        for one in json.loads((pages / "versions.json").read_text())
    ]
    assert listed == [("dev", []), ("0.10.0", ["latest"]), ("0.9.0", [])]
    built = {name: (pages / name / "index.html").read_text() for name in ("dev", "latest", "0.9.0")}
    assert built == {"dev": "build 3", "latest": "build 2", "0.9.0": "build 1"}
    assert "url=latest/" in (pages / "index.html").read_text()
