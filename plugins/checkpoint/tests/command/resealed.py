"""Manifests and files that are written anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchbus_checkpoint.disk import folder


def reseal(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A manifest that somebody has changed, and whose checksum fits."""
    path = checkpoint / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_text(json.dumps(content | {"sha256": folder._digest(content)}))
