"""What a pass is made of, for every schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from torchbus_pipeline.schedule.messages import Link
from torchbus_pipeline.schedule.run import Run
from torchbus_pipeline.schedule.stream import OwnStream


@dataclass
class Pass:
    """One forward of the loop, and the backward that belongs to it.

    ``begin_backward``: raises Unsupported unless the session runs a backward; returns whether the
    loop keeps the graph.
    """

    run: Run
    link: Link
    stream: OwnStream
    begin_backward: Callable[[Run], bool]

    def input_gradient(self) -> Tensor | None:
        """The gradient of the input, from the first place to all of the pipeline."""
        mine = self.run.input_gradient() if 0 in self.run.cut.own else None
        return self.link.spread(mine, self.run.cut.place_of(0))
