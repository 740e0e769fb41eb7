"""An output that waits for the backward, in which its pass takes turns with that."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchbus.plugin import RanksDiverged

from torchbus_pipeline.schedule.passes import Pass

Compute = Callable[[Pass], Tensor]


class Deferred:
    """``compute``: runs a whole pass forward. ``again``: makes the same pass anew.

    ``whole``: the output, on the last place only, once the backward has run.
    """

    def __init__(
        self, again: Callable[[], Pass], compute: Compute, meet: Callable[[str], None]
    ) -> None:
        self._again, self._compute, self._meet = again, compute, meet
        self.one = again()
        self.device = self.one.run.inputs.x.device
        self.output: Tensor | None = None
        self.has_run = False
        self._whole: Tensor | None = None

    def numbers(self) -> Tensor:
        """The output, with its graph if the backward has not run yet. All ranks call it."""
        if self.output is None and self.has_run:
            run = self.one.run
            self._meet(f"an output of {run.cut.name}, which the loop reads after backward")
            last = run.cut.place_of(run.cut.stages - 1)
            self.output, self._whole = self.one.link.spread(self._whole, last), None
        elif self.output is None:
            with torch.enable_grad():
                self.output = self._compute(self.one)
        if self.output is None:
            raise RanksDiverged("the output of a backward that has failed is read")
        return self.output

    def finished(self, whole: Tensor | None) -> None:
        """The backward has run. The last place has the output."""
        self.has_run, self._whole = True, whole

    def start_again(self) -> None:
        """Forget the pass: it is to be computed as a whole."""
        self.one = self._again()
