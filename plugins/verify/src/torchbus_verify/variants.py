"""Runs a script in variants, each once, and compares them for the search for causes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torchbus_verify.causes import draws, weights
from torchbus_verify.compare import difference, steps
from torchbus_verify.compare.difference import Comparison
from torchbus_verify.compare.steps import Drift
from torchbus_verify.runs import inside
from torchbus_verify.runs.inside import Change, RunRequest
from torchbus_verify.runs.run import EndedRun, run

REMOVALS: dict[str, Change] = {
    "draws": draws.take_away,
    "streams": draws.make_common,
    "statistics": draws.statistics_take_away,
    "augmentation": draws.augmentation_take_away,
    "weights": weights.note,
}
CAUSES = frozenset({"draws", "statistics", "augmentation"})
MILDER = CAUSES - {"draws"} | {"streams"}
"""The removals for a script that fails if its draws are the same for all samples."""
WHOLE_BATCHES = {"replace_sampler": False}
NO_CAUSES: frozenset[str] = frozenset()
Say = Callable[[str, int], None]
"""Called with the name of the present run, and the number of its steps."""


class Laboratory:
    """The runs of one script; a context manager, which removes their folders at its end."""

    def __init__(self, request: RunRequest, say: Say) -> None:
        self.request, self._say = request, say
        self.drift: Drift = {}
        self._folder = Path(tempfile.mkdtemp(prefix="torchbus-verify-"))
        self._runs: dict[object, EndedRun] = {}

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def runs(self) -> int:
        return len(self._runs)

    @property
    def seconds(self) -> float:
        """The seconds of all runs together."""
        return sum(one.seconds for one in self._runs.values())

    @property
    def seconds_compared(self) -> float:
        """The seconds of the two runs that are compared."""
        return sum(one.seconds for one in list(self._runs.values())[:2])

    def plain(
        self, removed: frozenset[str] = NO_CAUSES, *, again: int = 0, change: Change | None = None
    ) -> EndedRun:
        """Run the script without a session. ``again`` is the number of a repetition."""
        request, changes = inside.of(self.request)
        changes = (
            *changes,
            *(REMOVALS[name] for name in sorted(removed)),
            *([change] if change else []),
        )
        key = ("plain", self.request.float64, removed, again, change is not None)
        alone = inside.is_plain(self.request)
        return self._run(key, "plain run", request, alone, changes)

    def session(self, removed: frozenset[str] = NO_CAUSES, **options: object) -> EndedRun:
        """Run the script under the session, optionally with changed options."""
        key = ("session", self.request.float64, removed, tuple(sorted(options.items())))
        changes = tuple(REMOVALS[name] for name in sorted(removed))
        return self._run(key, "run under the session", self._with(options), False, changes)

    @property
    def suspects(self) -> frozenset[str]:
        """The suspects that can be removed from both runs."""
        failed = self.session(CAUSES).status or self.plain(CAUSES).status
        return MILDER if failed else CAUSES

    def compare(self, removed: frozenset[str] = NO_CAUSES, **options: object) -> Comparison | None:
        """Run and compare both variants with some causes removed; None if a run fails."""
        ours, plain = self.session(removed, **options), self.plain(removed)
        return None if ours.status or plain.status else self.compared(ours, plain)

    def compared(self, ours: EndedRun, plain: EndedRun) -> Comparison:
        same = inside.same_backwards(self.request)
        found = steps.compare(ours.first, plain.first, self.drift, backwards=same)
        found = found.without_gradients() if difference.hide_gradients(ours.ranks) else found
        return found.without(
            difference.local_rows(ours.ranks, plain.first), difference.elsewhere(ours.ranks)
        )

    def _with(self, options: dict[str, object]) -> RunRequest:
        if options == WHOLE_BATCHES:
            return self.request.with_whole_batches()
        return self.request.with_options(**options)

    def in_float64(self, wanted: bool = True) -> Laboratory:
        """Let both runs compute in float64 from now on, or in the script's precision."""
        self.request = replace(self.request, float64=wanted)
        return self

    def _run(
        self, key: object, name: str, request: RunRequest, alone: bool, changes: tuple[Change, ...]
    ) -> EndedRun:
        if key not in self._runs:
            folder = self._folder / f"run{len(self._runs)}"
            self._runs[key] = run(
                request,
                folder,
                alone=alone,
                changes=changes,
                watch=lambda steps: self._say(name, steps),
            )
        return self._runs[key]
