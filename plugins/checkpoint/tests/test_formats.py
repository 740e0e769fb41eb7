"""Checkpoints of every format that was released: the newest version goes on from them, to the
numbers of a run that was never interrupted.

``formats/N`` holds what the first version with format N has written. Whoever raises the number adds
its own: ``for kind in whole window parts; do python formats/loop.py write $kind formats/N/$kind;
done``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torchbus_checkpoint.disk import formats

FORMATS = Path(__file__).parent / "formats"
LOOP = FORMATS / "loop.py"
KINDS = ["whole", "window", "parts"]
KEPT = sorted(int(one.name) for one in FORMATS.iterdir() if one.name.isdigit())


@pytest.fixture(scope="module")
def plain(run: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The numbers of a run that was never interrupted, by kind."""
    known: dict[str, torch.Tensor] = {}

    def of(kind: str) -> torch.Tensor:
        if kind not in known:
            known[kind] = torch.tensor(
                run(LOOP, "plain", kind, "-", folder=tmp_path_factory.mktemp("plain")).json()
            )
        return known[kind]

    return of


def test_one_of_each_format_is_kept() -> None:
    assert list(range(1, formats.FORMAT + 1)) == KEPT


@pytest.mark.share(2)
@pytest.mark.parametrize("number", KEPT)
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_gone_on_from(
    run: Any, tmp_path: Path, plain: Any, kind: str, number: int
) -> None:
    if torch.__version__ < "2.13":
        pytest.skip("torch 2.13 wrote them, and others draw other numbers")
    pytest.importorskip(
        {
            "whole": "torchbus_checkpoint",
            "window": "torchbus_accumulate",
            "parts": "torchbus_sharded",
        }[kind]
    )
    resumed = torch.tensor(
        run(LOOP, "resume", kind, FORMATS / str(number) / kind, folder=tmp_path).json()
    )
    # they may have been written by another processor
    torch.testing.assert_close(resumed, plain(kind), rtol=1e-5, atol=1e-6)
