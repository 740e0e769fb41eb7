"""Whole training scripts: each ends with the models of one process."""

from __future__ import annotations

import ast
import functools
import runpy
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.run import BATCH, LoopRun

ZOO = Path(__file__).parents[1] / "zoo"
BOUND = 1e-9
"""The tolerance for scripts, which all compute in float64. Adam and line searches divide by small
numbers, which amplifies rounding. An engine that steps in a coarser dtype gets that dtype's bound.
"""
REMEDY = "Hold the other rules first; what is left is special to this script."


def train(script: Path, run: LoopRun) -> None:
    """Run the script with this rank's part of a batch, and note the models that it names."""
    sys.argv = [str(script), "--batch-size", str(BATCH // run.parts)]
    names = runpy.run_path(str(script), run_name="__main__")
    result = names.get("result")
    names |= result if isinstance(result, dict) else {}
    models = {name: thing for name, thing in names.items() if isinstance(thing, nn.Module)}
    run.bound = max(BOUND, run.bound)
    run.note_state(**models)


@dataclass(frozen=True)
class ScriptRule(Rule):
    """A rule whose loop is a separate script."""

    script: Path = Path()

    @property
    def says(self) -> str:
        """The docstring of the script, which says what it does."""
        return " ".join((ast.get_docstring(ast.parse(self.script.read_text())) or "").split())

    def prepare(self, folder: Path) -> Callable[[LoopRun], None]:
        copied = folder / self.script.name
        shutil.copyfile(self.script, copied)
        return functools.partial(train, copied)


def of(script: Path) -> ScriptRule:
    name = f"script-{script.stem.replace('_', '-')}"
    return ScriptRule(name, functools.partial(train, script), REMEDY, script=script)


RULES = tuple(map(of, sorted(ZOO.glob("[!_]*.py"))))
