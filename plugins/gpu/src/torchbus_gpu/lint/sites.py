"""Count the steps in which a line of the loop does something."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from torchbus.runtime.steps import Steps

from torchbus_gpu._compat import FILE_OF_TENSOR, current_frame
from torchbus_gpu.users_code import Line, is_users, loader_line, outwards

PASSES_ON = (FILE_OF_TENSOR,)  # Tensor.__format__ calls item() for an f-string


@dataclass
class _Site:
    first_step: int
    last_step: int
    steps: int = 1
    warned: bool = False


class Sites:
    """Counts the steps for each line, and warns of a line once, if it does it often.

    Often means in ``least_steps`` steps, and in at least ``part`` of all steps since its first one.
    Only calls of the user's own code count, and not those of a dataset that makes a sample. A
    process that the loop forks does not warn.
    """

    def __init__(
        self, steps: Steps, message: Callable[[str], str], least_steps: int, part: float
    ) -> None:
        self._steps = steps
        self._message = message
        self._least_steps = least_steps
        self._part = part
        self._pid = os.getpid()
        self._sites: dict[Line, _Site] = {}

    def hit(self, what: str) -> None:
        """The replacement of a method was called. ``what`` is the method's name."""
        frame = _caller(current_frame(2))
        if not is_users(frame) or os.getpid() != self._pid:
            return
        line, step = Line(frame.f_code.co_filename, frame.f_lineno), self._steps.count
        site = self._sites.get(line)
        if site is None:
            self._sites[line] = _Site(
                step, step, warned=loader_line(list(outwards(frame))) is not None
            )
        elif not site.warned and site.last_step != step:
            site.last_step = step
            site.steps += 1
            site.warned = self._is_often(site) and self._warn(line, what)

    def _is_often(self, site: _Site) -> bool:
        return site.steps >= self._least_steps and site.steps >= self._part * (
            site.last_step - site.first_step + 1
        )

    def _warn(self, line: Line, what: str) -> bool:
        warnings.warn_explicit(self._message(what), UserWarning, line.file, line.number)
        return True


def _caller(frame: FrameType) -> FrameType:
    while frame.f_back is not None and (
        frame.f_code.co_filename in PASSES_ON
        or (frame.f_globals.get("__name__") or "").startswith("torchbus.patches")
    ):
        frame = frame.f_back
    return frame
