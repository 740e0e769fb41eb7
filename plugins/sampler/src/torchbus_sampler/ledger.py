"""Write which rank took which samples, and when, to check that each was used once."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

from torch.utils.data import DataLoader
from torchbus.plugin import Share


class Ledger:
    """Writes ``<folder>/rank<r>.jsonl``: a line for each batch that this rank takes.

    A line has these names:

    - ``loader``: a number, in the order of first use
    - ``pass`` over the loader, and ``step`` in the pass, both from 0
    - ``indices`` in the dataset, as the sampler drew them. The list is empty for an iterable data
      set, and on a rank that repeats a batch because it got no samples.
    - ``weight`` of this rank in the mean over ranks, 0.0 for a repeated batch
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"rank{rank}.jsonl").open("w", buffering=1, encoding="utf-8")
        self._loaders: weakref.WeakKeyDictionary[DataLoader[object], int] = (
            weakref.WeakKeyDictionary()
        )
        self._passes: weakref.WeakKeyDictionary[DataLoader[object], int] = (
            weakref.WeakKeyDictionary()
        )
        self._seen = 0

    def begin(self, loader: DataLoader[object]) -> None:
        """A pass begins."""
        if loader not in self._loaders:
            self._loaders[loader] = self._seen
            self._seen += 1
        self._passes[loader] = self._passes.get(loader, -1) + 1

    def take(self, loader: DataLoader[object], step: int, share: Share) -> None:
        """The loop takes a batch."""
        line = {
            "loader": self._loaders[loader],
            "pass": self._passes[loader],
            "step": step,
            "weight": share.weight,
        }
        self._file.write(json.dumps(line | {"indices": list(share.indices)}, default=str) + "\n")

    def close(self) -> None:
        self._file.close()
