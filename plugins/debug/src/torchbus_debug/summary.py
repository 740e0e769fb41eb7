"""What a try ran, in a few lines on rank 0."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass

from torch.utils.data import DataLoader
from torchbus.plugin import LoaderIterator, hookimpl
from torchbus.runtime.steps import Steps

from torchbus_debug.passes import LimitedPasses


@dataclass
class Ran:
    """What ran of one loader. ``evaluates``: what its latest pass did."""

    name: str
    passes: int = 0
    batches: int = 0
    evaluates: bool = False


class Summary:
    """Counts what runs, and prints it when the loop has ended without an error."""

    def __init__(self, steps: Steps, passes: LimitedPasses) -> None:
        self._steps = steps
        self._passes = passes
        self._ran: list[Ran] = []
        self._loaders: weakref.WeakKeyDictionary[DataLoader[object], Ran] = (
            weakref.WeakKeyDictionary()
        )

    @hookimpl
    def loader_opened(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        ran = self._loaders.get(loader)
        if ran is None:
            ran = self._loaders[loader] = Ran(iterator.origin.name)
            self._ran.append(ran)
        ran.passes += 1
        ran.evaluates = self._passes.evaluates(loader)

    @hookimpl
    def batch_ready(self, loader: DataLoader[object]) -> None:
        if loader in self._loaders:
            self._loaders[loader].batches += 1

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            print("\n".join(self.lines()), file=sys.stderr, flush=True)

    def lines(self) -> list[str]:
        return [
            f"torchbus: fast_dev_run: the loop ran to its end, with {self._steps.count} real"
            " optimizer steps; no checkpoint was written, and no logger started",
            *(
                f"  {'evaluation' if one.evaluates else 'training'}: {one.name},"
                f" passes: {one.passes}, batches on rank 0: {one.batches}"
                for one in self._ran
            ),
        ]
