"""A deferred output: its forward runs in the backward, interleaved (1F1B)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from zlib import crc32

import torch
from torch import Tensor
from torchbus.tree import leaves

from torchbus_pipeline.lazily.later import Later
from torchbus_pipeline.lazily.replay import Replay, path_of
from torchbus_pipeline.schedule.stream import Pass


def batch_of(loss: Later) -> str:
    """Errors with a digest of the input, and of the other operands of the loss.

    Tensors with gradients are left out: they come from the model.
    """
    source = loss.source
    assert isinstance(source, Deferred)
    nodes = [later.node for later in path_of(loss) if later.node is not None]
    used = [leaf for node in nodes for leaf in leaves((node.args, node.kwargs))]
    numbers = [
        float(one.detach().double().sum())
        for one in [source.one.run.inputs.x, *used]
        if isinstance(one, Tensor) and not isinstance(one, Later) and not one.requires_grad
    ]
    return f"a batch with the checksum {crc32(struct.pack(f'{len(numbers)}d', *numbers)):08x}"


Compute = Callable[[Pass], Tensor]


class Deferred:
    """A deferred output. ``compute``: runs a whole pass forward.

    ``again``: makes the same pass again. After the backward, the weights may change. So the last
    place stores the values of all operands of the loss.
    """

    def __init__(
        self, again: Callable[[], Pass], compute: Compute, sync: Callable[[str], None]
    ) -> None:
        self._again, self._compute, self._sync = again, compute, sync
        self.one = again()
        self.device = self.one.run.inputs.x.device
        self.output: Tensor | None = None
        self._path: set[int] = set()
        self._values: dict[int, Tensor] = {}

    def numbers(self) -> Tensor:
        """Compute the output now, as a whole, with its graph. All ranks call it."""
        if self.output is None:
            with torch.enable_grad():
                self.output = self._compute(self.one)
        return self.output

    def value_of(self, later: Later) -> Tensor | None:
        """Return the values of the loss's operands, after backward. All ranks call it."""
        if id(later) not in self._path:
            return None
        run = self.one.run
        self._sync(f"an output of {run.cut.name}, which the loop reads after backward")
        last = run.cut.place_of(run.cut.stages - 1)
        return self.one.link.spread(self._values.get(id(later)), last)

    def finished(self, replay: Replay) -> None:
        """Called when the backward has run. The last place has the values."""
        self._path = {id(later) for later in replay.path}
        self._values = {key: value.detach() for key, value in replay.values.items()}

    def start_again(self) -> None:
        """Drop the pass, to compute it as a whole."""
        self.one = self._again()
