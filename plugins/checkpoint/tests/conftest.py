"""Scripts in processes that begin in no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result, write_script

Run = Callable[..., Result]
PRELOADED = ("torchbus_checkpoint",)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``run(source or path, *args, folder=, kill_after_s=None, whom=0)`` of a script; the same text
    has the same path each time.
    """
    sources = tmp_path_factory.mktemp("sources")

    def call(source: str | Path, *args: Any, folder: Path, **options: Any) -> Result:
        path = (
            source
            if isinstance(source, Path)
            else write_script(sources, source, f"script{abs(hash(source))}.py")
        )
        return fork_script(path, *args, cwd=folder, timeout_s=800.0, preloaded=PRELOADED, **options)

    return call
