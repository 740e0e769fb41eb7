"""Plain tensors beside DTensors, while a model computes."""

from __future__ import annotations

from contextlib import ExitStack

from torch.distributed.tensor.experimental import implicit_replication
from torch.nn import Module


class Mixing:
    """Between ``begin`` and ``end``, a plain tensor counts as one that all ranks have.

    Calls may be nested. Outside, torch goes on to refuse such a mixture.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._open = ExitStack()

    def around(self, model: Module, undo: ExitStack) -> None:
        """Begin with each forward of the model, and end with it, also if it raises."""
        undo.callback(model.register_forward_pre_hook(self._before, prepend=True).remove)
        undo.callback(model.register_forward_hook(self._after, always_call=True).remove)

    def begin(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._open.enter_context(implicit_replication())

    def end(self) -> None:
        self._depth = max(self._depth - 1, 0)
        if not self._depth:
            self._open.close()

    def _before(self, model: Module, inputs: object) -> None:
        self.begin()

    def _after(self, model: Module, inputs: object, outputs: object) -> None:
        self.end()
