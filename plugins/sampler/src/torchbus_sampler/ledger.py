"""Records which rank used which samples, and when, to check that each was used once."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

from torch.utils.data import DataLoader
from torchbus.plugin import Share


class Ledger:
    """Writes ``<folder>/rank<r>.jsonl``, with one line for each batch that this rank gets.

    A line has these keys:

    - ``loader``: a number, in the order of first use
    - ``pass`` over the loader, and ``step`` in the pass, both from 0
    - ``indices`` in the dataset, as the sampler drew them. The list is empty for an iterable data
      set, and on a rank that repeats a batch because it got no samples.
    - ``weight`` of this rank in the mean over ranks, 0.0 for a repeated batch

    While other sessions share the data, a further line records what a step of all of them has used:
    ``from`` and ``to``, counted in the script's own batches, and their ``committed`` indices. A
    step that was discarded has no such line, and its batches are used again.
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
        """Begin a pass."""
        if loader not in self._loaders:
            self._loaders[loader] = self._seen
            self._seen += 1
        self._passes[loader] = self._passes.get(loader, -1) + 1

    def take(self, loader: DataLoader[object], step: int, share: Share) -> None:
        """Record a batch that the loop gets."""
        line = {
            "loader": self._loaders[loader],
            "pass": self._passes[loader],
            "step": step,
            "weight": share.weight,
        }
        self._file.write(json.dumps(line | {"indices": list(share.indices)}, default=str) + "\n")

    def of_pass(self, loader: DataLoader[object]) -> PassLedger:
        """Return the ledger for the order of the present pass."""
        return PassLedger(self, weakref.ref(loader))

    def number(self, loader: DataLoader[object]) -> int:
        """Return the number of the present pass."""
        return self._passes[loader]

    def go_to(self, loader: DataLoader[object], number: int) -> None:
        """Change the number of the present pass, because earlier passes were skipped."""
        self._passes[loader] = number

    def commit(self, loader: DataLoader[object], start: int, stop: int, indices: object) -> None:
        """Record that a step of all ranks has used the script's batches ``start`` to ``stop``."""
        line = {"loader": self._loaders[loader], "pass": self._passes[loader]}
        used = {"from": start, "to": stop, "committed": indices}
        self._file.write(json.dumps(line | used, default=str) + "\n")

    def close(self) -> None:
        self._file.close()


class PassLedger:
    """The part of one pass in a ledger."""

    def __init__(self, ledger: Ledger, loader: weakref.ref[DataLoader[object]]) -> None:
        self._ledger = ledger
        self._loader = loader

    @property
    def number(self) -> int:
        """The number of the pass."""
        loader = self._loader()
        return 0 if loader is None else self._ledger.number(loader)

    def go_to(self, number: int) -> None:
        """See ``Ledger.go_to``."""
        loader = self._loader()
        if loader is not None:
            self._ledger.go_to(loader, number)

    def commit(self, start: int, stop: int, indices: object) -> None:
        """See ``Ledger.commit``."""
        loader = self._loader()
        if loader is not None:
            self._ledger.commit(loader, start, stop, indices)
