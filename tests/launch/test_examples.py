"""The digits example reaches the same parameters by itself and under the one line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from torchbus_testing.scripts import run

EXAMPLES = Path(__file__).parents[2] / "examples"
RESULT = re.compile(r"^(global|per_device) +\S+ to the plain run; ranks bit-identical: ok$", re.M)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "epochs"),
    [
        (2, 1),
        (2, 5),
        (3, 5),
    ],
)
def test_the_same_parameters(ranks, epochs):
    result = run(
        [sys.executable, str(EXAMPLES / "compare.py"), f"--ranks={ranks}", f"--epochs={epochs}"],
        timeout_s=280,
    )
    assert result.ok()
    assert RESULT.findall(result.stdout) == ["global", "per_device"]
    assert "models      " in result.stdout  # explain()
    plain, divided, per_device = result.stdout.split("\n--- ")[1:4]
    assert told(plain) == told(divided) == told(per_device)
    assert len(told(plain)) == epochs


def told(part: str) -> list[str]:
    """What the loop prints about its epochs."""
    return re.findall(r"^epoch .*$", part, re.M)


@pytest.mark.slow
def test_the_loop_by_itself_and_with_ranks(tmp_path):
    for words in ([], ["--ranks", "2"]):
        result = run(
            [sys.executable, str(EXAMPLES / "digits.py"), "--epochs=2", *words],
            cwd=tmp_path,
            env={"CUDA_VISIBLE_DEVICES": ""},
        )
        assert result.ok()
        assert len(told(result.stdout)) == 2
        assert (tmp_path / "digits.pt").exists()
