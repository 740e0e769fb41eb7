"""Put the built site into a checkout of the branch gh-pages, as one of its versions::

    python docs/site/publish.py FOLDER 0.2.0 latest    # the default version, also as `latest`
    python docs/site/publish.py FOLDER dev

The theme's menu of versions reads ``versions.json``, newest first.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

SITE = Path(__file__).resolve().parents[2] / "site"


def publish(site: Path, folder: Path, version: str, alias: str = "") -> None:
    for name in filter(None, (version, alias)):
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(site, folder / name)
    listed = folder / "versions.json"
    before: list[dict[str, Any]] = json.loads(listed.read_text()) if listed.exists() else []
    others = [
        {**one, "aliases": [name for name in one["aliases"] if name != alias]}
        for one in before
        if one["version"] != version
    ]
    mine = {"version": version, "title": version, "aliases": [alias] if alias else []}
    listed.write_text(json.dumps(sorted([mine, *others], key=_numbers, reverse=True), indent=2))
    (folder / ".nojekyll").touch()
    if alias:
        redirect = f'<meta http-equiv="refresh" content="0; url={alias}/">\n'
        (folder / "index.html").write_text(redirect)


def _numbers(one: dict[str, Any]) -> list[float]:
    return [float(word) for word in re.findall(r"\d+", one["version"])] or [math.inf]


if __name__ == "__main__":
    publish(SITE, Path(sys.argv[1]), *sys.argv[2:])
