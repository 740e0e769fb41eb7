"""Which steps of several optimizers are one step of the loop."""

from __future__ import annotations

import weakref

from torch.optim import Optimizer


class Rounds:
    """A round ends when an optimizer steps that has stepped in it already. So two nets of a GAN that step in turn make one step, and a loop
    that goes on with another optimizer goes on counting. By what the loop does, and not by when Python frees an optimizer or gives another
    one its address, which differ by rank.
    """

    def __init__(self) -> None:
        self._stepped: dict[int, weakref.ref[Optimizer]] = {}

    def begins(self, optimizer: Optimizer) -> bool:
        """An optimizer has made a step: whether it is the first one of a round."""
        known = self._stepped.get(id(optimizer))
        begins = not self._stepped or (known is not None and known() is optimizer)
        if begins:
            if len(self._stepped) == 1 and known is not None:
                return True  # as in the steps of most loops
            self._stepped.clear()
        self._stepped[id(optimizer)] = weakref.ref(optimizer)
        return begins
