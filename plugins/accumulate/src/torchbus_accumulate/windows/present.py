"""The gradients that the parameters have now, and where they come from."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import Tensor
from torchbus.plugin import Unsupported

from torchbus_accumulate.messages import UNCLEARED


class PresentGradients:
    """``is_new``: a backward came after the last step. ``has_failed``: the last backward raised.

    ``are_over``: they belong to a window that is over, and are weighted by counts. If a backward
    then adds to them, they are mixed.
    """

    __slots__ = ("_are_mixed", "_last", "are_over", "has_failed", "is_new")

    def __init__(self) -> None:
        self.is_new = self.has_failed = self.are_over = self._are_mixed = False
        self._last: weakref.ref[Tensor] | None = None  # one of those of the last real step

    def add_to(self, found: Sequence[Tensor]) -> None:
        """A backward of another window is about to add to them. They may be zeros."""
        self.are_over = self._are_mixed = any(bool(gradient.any()) for gradient in found)

    def clear(self) -> None:
        """The loop clears them."""
        self.are_over = self._are_mixed = False

    def commit(self) -> None:
        """Their step is not taken."""
        self.is_new = self.has_failed = False

    def refuse_apart(self, counted: bool) -> None:
        """Raise Unsupported if a backward that counts has made some apart from the held ones."""
        self._are_mixed = counted and self.is_new
        self.refuse_mixed()

    def finish(self, found: Sequence[Tensor], counted: bool) -> None:
        """Their step is real."""
        self.are_over = counted
        self._last = weakref.ref(found[0]) if found else None
        self.is_new = self.has_failed = False

    def refuse_mixed(self) -> None:
        """Raise Unsupported if the loop has not cleared them after a window."""
        if self._are_mixed:
            raise Unsupported(UNCLEARED)

    def are_of_last_step(self, found: Sequence[Tensor]) -> bool:
        """Whether the loop has left them in place since the last real step."""
        last = self._last and self._last()
        return any(gradient is last for gradient in found)
