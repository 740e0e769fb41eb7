"""Lines of the loop that do something again and again."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from torch import _tensor

from torchbus_gpu.lint.steps import Steps
from torchbus_gpu.users_code import Line, is_users, loader_line, outwards

PASSES_ON = (_tensor.__file__,)  # Tensor.__format__ calls item() for an f-string


@dataclass
class _Site:
    first_step: int
    last_step: int
    steps: int = 1
    told: bool = False


class Sites:
    """Counts in how many steps each line did it, and warns of a line once: when it did so in ``least_steps`` steps that are at
    least ``part`` of all since its first.

    Only what the user's own code calls counts, and not what a dataset does while it makes a sample. A process that the loop forks
    warns of nothing.
    """

    def __init__(self, steps: Steps, words: Callable[[str], str], least_steps: int, part: float) -> None:
        self._steps = steps
        self._words = words
        self._least_steps = least_steps
        self._part = part
        self._pid = os.getpid()
        self._sites: dict[Line, _Site] = {}

    def hit(self, what: str) -> None:
        """Called by the replacement of a method, with the method's name."""
        frame = _caller(sys._getframe(2))
        if not is_users(frame) or os.getpid() != self._pid:
            return
        line, step = Line(frame.f_code.co_filename, frame.f_lineno), self._steps.count
        site = self._sites.get(line)
        if site is None:
            self._sites[line] = _Site(step, step, told=loader_line(list(outwards(frame))) is not None)
        elif not site.told and site.last_step != step:
            site.last_step = step
            site.steps += 1
            site.told = self._is_often(site) and self._tell(line, what)

    def _is_often(self, site: _Site) -> bool:
        return site.steps >= self._least_steps and site.steps >= self._part * (site.last_step - site.first_step + 1)

    def _tell(self, line: Line, what: str) -> bool:
        warnings.warn_explicit(self._words(what), UserWarning, line.file, line.number)
        return True


def _caller(frame: FrameType) -> FrameType:
    while frame.f_back is not None and (
        frame.f_code.co_filename in PASSES_ON or (frame.f_globals.get("__name__") or "").startswith("torchbus._seams")
    ):
        frame = frame.f_back
    return frame
