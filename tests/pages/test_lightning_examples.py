"""Lightning's examples as plain loops, on one rank and on two."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/lightning"
CALLS = """
import contextlib, io, json, os, runpy, sys
said = []
for script, *words in json.loads(sys.argv[1]):
    sys.argv = [script, *words]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(script, run_name="__main__")
    said.append(output.getvalue())
print(json.dumps([said, sorted(os.listdir())]))
"""


def run(folder: Path, name: str, *calls: list[str]) -> tuple[list[str], list[str]]:
    """Return what each call prints, and what is in the folder then."""
    script = str(EXAMPLES / f"{name}.py")
    words: list[Any] = [[script, *call] for call in calls]
    result = fork_script(CALLS, json.dumps(words), cwd=folder, timeout_s=300)
    assert result.ok(), result
    said, there = json.loads(result.stdout)
    return said, there


def numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"\d+\.\d+", text)]


def test_an_image_classifier(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    (tried, one, two), there = run(
        tmp_path,
        "image_classifier",
        ["--fast-dev-run", "--folder", "tried"],
        *(["--ranks", f"{ranks}", "--epochs", "3", "--folder", f"{ranks}"] for ranks in (1, 2)),
    )
    assert tried.startswith("epoch 0") and there == ["1", "2"], "a try leaves nothing"
    assert one == two and len(numbers(one)) == 4 and numbers(one)[-1] > 0.7


def test_a_gan(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    (one, two), _ = run(
        tmp_path, "gan", *(["--ranks", f"{ranks}", "--epochs", "1"] for ranks in (1, 2))
    )
    assert numbers(two) == pytest.approx(numbers(one), abs=1e-3)


def test_a_language_model_that_goes_on(tmp_path: Path) -> None:
    (whole, cut, rest, alone), _ = run(
        tmp_path,
        "language_model",
        ["--epochs", "2", "--ranks", "2", "--dropout", "0", "--folder", "whole"],
        ["--epochs", "2", "--ranks", "2", "--dropout", "0", "--folder", "cut", "--max-steps", "3"],
        ["--epochs", "2", "--ranks", "2", "--dropout", "0", "--folder", "cut"],
        ["--epochs", "2", "--dropout", "0", "--folder", "alone"],
    )
    assert cut.startswith("after step 3:") and rest == whole, "bit for bit"
    assert numbers(alone) == pytest.approx(numbers(whole), rel=1e-5)


def test_a_teacher_that_follows(tmp_path: Path) -> None:
    (one, two), _ = run(tmp_path, "byol", *(["--ranks", f"{ranks}"] for ranks in (1, 2)))
    assert numbers(two) == pytest.approx(numbers(one), abs=2e-4) and len(numbers(one)) == 6


def test_a_backbone_frozen_at_first(tmp_path: Path) -> None:
    calls = (["--ranks", f"{ranks}", "--folder", f"{ranks}"] for ranks in (1, 2))
    (one, two), _ = run(tmp_path, "transfer", *calls)
    assert numbers(two) == pytest.approx(numbers(one), abs=2e-4) and len(numbers(one)) == 6
    assert one.splitlines()[-1] == two.splitlines()[-1] and len(one.splitlines()[-1]) == 40
    assert len([*tmp_path.glob("2/checkpoints/step-*")]) <= 4
