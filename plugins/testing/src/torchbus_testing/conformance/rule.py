"""A rule of the kit: a loop, and what must hold when it runs on several ranks."""

from __future__ import annotations

import inspect
import runpy
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchbus_testing.conformance import judgement
from torchbus_testing.conformance.judgement import Evidence
from torchbus_testing.conformance.run import LoopRun


def same_world(ranks: int) -> tuple[int, ...]:
    """Return the worlds of a rule with one session."""
    return (ranks,)


@dataclass(frozen=True)
class Rule:
    """A requirement on every strategy and plugin.

    Args:
        loop: the loop, whose docstring says the rule.
        remedy: what to do in a strategy that breaks the rule.
        options: the options of the session.
        needs: names of plugins without which the rule can't be tried.
        judge: finds the problems in the evidence.
        essential: whether the rule can't be refused.
        worlds: returns the numbers of ranks of successive sessions.
        objects: makes plugins that listen.
    """

    name: str
    loop: Callable[[LoopRun], None]
    remedy: str
    options: Mapping[str, object] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    judge: Callable[[Evidence], list[str]] = judgement.same_as_one_process
    essential: bool = False
    worlds: Callable[[int], tuple[int, ...]] = same_world
    objects: Callable[[], tuple[object, ...]] = tuple

    @property
    def says(self) -> str:
        """The rule, in a sentence."""
        return " ".join((inspect.getdoc(self.loop) or "").split())

    def prepare(self, folder: Path) -> Callable[[LoopRun], None]:
        """Run the loop as user code: a session does not treat installed code as the user's loop."""
        script = folder / "loop.py"
        shutil.copyfile(self.loop.__code__.co_filename, script)
        found: Callable[[LoopRun], None] = runpy.run_path(str(script), run_name="loop")[
            self.loop.__name__
        ]
        return found

    def __str__(self) -> str:
        return self.name
