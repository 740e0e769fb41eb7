"""Parameters that a forward writes under stage 3."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from .warm import fork_script

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")

SCRIPT = Path(__file__).parent / "scripts" / "deepspeed_writes.py"


def test_writes_are_kept() -> None:
    assert fork_script(SCRIPT, timeout_s=115).json() < 1e-6
