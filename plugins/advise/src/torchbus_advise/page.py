"""The output of ``torchbus advise`` about one script, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from torchbus_advise.plans import Installed
from torchbus_advise.rows import GpuSpec, Machine, PlanRow, Recommendation, choose, rows
from torchbus_advise.text import (
    LEGEND,
    by_part,
    by_ranks,
    call,
    found,
    hints,
    reason,
    recommendation,
    wrapped,
)
from torchbus_advise.trial import Survey


@dataclass(frozen=True)
class Page:
    """The output about one script. ``devices`` are the numbers of GPUs of a machine to consider."""

    survey: Survey
    there: Installed
    gpu: GpuSpec
    devices: Sequence[int]
    nodes: int

    @cached_property
    def rows(self) -> dict[int, list[PlanRow]]:
        """The rows of the table, by number of ranks."""
        return {count * self.nodes: self._rows_for(count * self.nodes) for count in self.devices}

    @cached_property
    def choices(self) -> dict[int, Recommendation]:
        return {ranks: choose(self._rows_for, ranks) for ranks in self.rows}

    def text(self) -> str:
        parts = [found(self.survey), "", self._table(), LEGEND, ""]
        for ranks, choice in self.choices.items():
            head = f"{ranks} x {self.gpu.name}, {self.gpu.memory_gib:g} GiB"
            parts += [
                f"{head}:",
                *recommendation(choice, self.rows[ranks], self._machine(ranks)),
                "",
            ]
        ranks, last = list(self.choices.items())[-1]
        facts, real = self.survey.facts["32"], self.survey.real
        parts += hints(last, self.rows[ranks], facts, real, self.there.options)
        parts += [f"lint: {text}" for text in real.warnings] if real is not None else []
        parts += [f"note: {text}" for text in [*self.survey.notes, *facts.notes]]
        return "\n".join(line for part in parts for line in wrapped(part)).rstrip()

    def json(self) -> str:
        return json.dumps(
            {
                "gpu": asdict(self.gpu),
                "rows": [_plain(row) for found in self.rows.values() for row in found],
                "choices": {ranks: self._choice(ranks) for ranks in self.choices},
                "facts": {name: asdict(facts) for name, facts in self.survey.facts.items()},
                "real": None if self.survey.real is None else asdict(self.survey.real),
                "notes": self.survey.notes,
            }
        )

    def _rows_for(self, ranks: int) -> list[PlanRow]:
        return rows(self.survey.facts, self.there, self._machine(ranks))

    def _machine(self, ranks: int) -> Machine:
        return Machine(self.gpu, ranks, self.nodes)

    def _table(self) -> str:
        if len(self.rows) == 1:
            return by_part(next(iter(self.rows.values())))
        return by_ranks(self.rows)

    def _choice(self, ranks: int) -> dict[str, object] | None:
        choice = self.choices[ranks]
        if choice.row is None:
            return None
        why = reason(choice, self.rows[ranks], self._machine(ranks))
        return {"call": call(choice.row), "reason": why, "row": _plain(choice.row)}


def _plain(row: PlanRow) -> dict[str, object]:
    return {
        "plan": row.plan.label,
        "ranks": row.machine.ranks,
        "bytes": asdict(row.memory),
        "total_bytes": row.memory.total,
        "fits": row.fits,
        "batch": row.batch,
        "largest_batch": row.largest_batch,
        "sent_bytes": row.sent_bytes,
        "step_s": row.pace.step_s,
        "efficiency": row.pace.efficiency,
    }
