"""Which sample went to which rank, when: for looking whether each was seen once."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from torchbus.plugin import Share


class Ledger:
    """``<folder>/rank<r>.jsonl``: a line for each batch that this rank takes of a loader whose order the session draws.

    A line has: ``loader`` (a number, in the order of first use), ``pass`` over it and ``step`` in the pass (from 0),
    ``indices`` (dataset indices as the sampler drew them; empty on a rank that repeats a batch for want of samples, and
    for iterable data sets, which have none) and ``weight`` (of this rank in the mean over ranks; 0.0 for a repeated batch).
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"rank{rank}.jsonl").open("w", buffering=1, encoding="utf-8")
        self._loaders: weakref.WeakKeyDictionary[DataLoader[Any], int] = weakref.WeakKeyDictionary()
        self._passes: weakref.WeakKeyDictionary[DataLoader[Any], int] = weakref.WeakKeyDictionary()
        self._seen = 0

    def begin(self, loader: DataLoader[Any]) -> None:
        """A pass begins."""
        if loader not in self._loaders:
            self._loaders[loader] = self._seen
            self._seen += 1
        self._passes[loader] = self._passes.get(loader, -1) + 1

    def take(self, loader: DataLoader[Any], step: int, share: Share) -> None:
        """A batch is handed to the loop."""
        line = {"loader": self._loaders[loader], "pass": self._passes[loader], "step": step, "weight": share.weight}
        self._file.write(json.dumps(line | {"indices": list(share.indices)}, default=str) + "\n")

    def close(self) -> None:
        self._file.close()
