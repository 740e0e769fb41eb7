"""Counts the real steps of the loop."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from linecache import getlines
from types import CodeType, FrameType

from torch.optim import Optimizer

from torchbus.bus.base import hookimpl
from torchbus.bus.registry import Bus
from torchbus.compat.torch_names import graph_nodes_built
from torchbus.errors import UsageError
from torchbus.runtime.user_code import is_inside, outwards


class StepCounter:
    """Counts optimizer steps that run. A step that a plugin skips does not count.

    ``count`` is the number of the loop's steps. Optimizers that step in turn make one step
    together, which ends when an optimizer that is part of it steps again, or when the loop creates
    an optimizer or adds parameters to one. So the two networks of a GAN count once, and each fold
    of a cross-validation counts all its steps.

    Plugins call ``follow()`` first. When their ``after_optimizer_step`` is called, the step is
    already counted.
    """

    hears_trials = False

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._follows = False
        self._made: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        # numbers, unlike ids, are never reused: each rank frees optimizers at its own times
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._in_step: set[int] = set()
        self._given = self._nodes_before = 0
        self.count = 0

    def follow(self) -> StepCounter:
        """Begin to count."""
        if not self._follows:
            self._follows = True
            self._bus.register(self, "steps")
        return self

    def enter(self, frame: FrameType) -> None:
        """Begin to count if the script, which enters the block at ``frame``, reads the count."""
        self._nodes_before = graph_nodes_built()
        for one in outwards(frame):
            if not is_inside(one.f_globals):
                self.read_by(one.f_code)

    def read_by(self, code: CodeType | None) -> None:
        """Begin to count if the file of the code names the count."""
        if code is not None and ".global_step" in "".join(getlines(code.co_filename)):
            self.follow()

    def begin(self, is_inside: bool) -> None:
        """Begin to count, unless the loop ``is_inside`` the block and may have made steps there."""
        if not (is_inside and graph_nodes_built() != self._nodes_before):
            self.follow()

    def asked(self, is_inside: bool) -> int:
        """Return the count to the script. Raises UsageError if it may lack steps."""
        self.begin(is_inside)
        if not self._follows:
            raise UsageError(
                "s.global_step: nothing has counted the steps before this line, and an optimizer"
                " may have made some. Read it once before the block: s = session(...);"
                " s.global_step"
            )
        return self.count

    def of(self, optimizer: Optimizer) -> int:
        """Return how many steps one optimizer has made."""
        return self._made.get(optimizer, 0)

    def optimizers(self) -> list[Optimizer]:
        """Return the optimizers that have stepped."""
        return list(self._made)

    def has_stepped(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer takes part in the loop's latest step."""
        return self._numbers.get(optimizer) in self._in_step

    def go_on(
        self, count: int, made: Sequence[tuple[Optimizer, int]], stepped: Sequence[Optimizer]
    ) -> None:
        """Continue from a checkpoint.

        ``made`` has the steps of each optimizer, ``stepped`` the optimizers of the latest step.
        """
        self.count = count
        self._made = weakref.WeakKeyDictionary(dict(made))
        self._in_step = {self._number(optimizer) for optimizer in stepped}

    @hookimpl
    def parameters_added(self) -> None:
        self._in_step = set()

    @hookimpl(tryfirst=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        number = self._number(optimizer)
        self._made[optimizer] = self._made.get(optimizer, 0) + 1
        if not self._in_step or number in self._in_step:
            self.count += 1
            self._in_step = {number}
        else:
            self._in_step.add(number)

    def _number(self, optimizer: Optimizer) -> int:
        number = self._numbers.get(optimizer)
        if number is None:
            self._given += 1
            number = self._numbers[optimizer] = self._given
        return number
