"""The script of a case: one rule's loop, in a session or in the one plain process.

``check`` runs it with one argument, the fields of a ``CheckRequest`` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torchbus.errors import Unsupported, UsageError

from torchbus_testing.conformance.judgement import AFTER, write
from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.rules import find
from torchbus_testing.conformance.run import LoopRun
from torchbus_testing.conformance.subject import Subject
from torchbus_testing.state import assert_torch_unchanged, torch_state

Loop = Callable[[LoopRun], None]


@dataclass(frozen=True)
class CheckRequest:
    """The request of ``check`` to the script.

    ``subject`` has the fields of a ``Subject`` as JSON, or is "" for the plain process. ``path`` is
    the import path. ``folder`` is the folder for records, inside that of all stages.
    """

    rule: str
    subject: str
    ranks: int
    stage: int
    dtype: str
    path: list[str]
    folder: str

    def written(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def main(request: CheckRequest) -> None:
    sys.path[:] = request.path
    rule, mine = find(request.rule), Path(request.folder)
    dtype: torch.dtype = getattr(torch, request.dtype)
    loop = rule.prepare(mine)
    if not request.subject:
        with _recorded(mine, LoopRun(mine.parent, dtype)) as run:
            return loop(run)
    before, error = torch_state(), None
    try:
        _in_session(request, rule, loop, dtype)
    except BaseException as raised:
        error = raised
        raise
    finally:
        write(mine / AFTER, **_error_fields(error), changed=_changed(before))


def _in_session(request: CheckRequest, rule: Rule, loop: Loop, dtype: torch.dtype) -> None:
    mine, objects = Path(request.folder), rule.objects()
    subject = Subject.from_json(request.subject)
    with subject.session(request.ranks, rule.options, objects) as s:
        run = LoopRun(mine.parent, dtype, s, request.stage, objects)
        with _recorded(mine, run):
            loop(run)


@contextmanager
def _recorded(folder: Path, run: LoopRun) -> Iterator[LoopRun]:
    """Write the facts that the loop has recorded, and the error that ended it."""
    error: BaseException | None = None
    try:
        yield run
    except BaseException as raised:
        error = raised
        raise
    finally:
        found = {"facts": run.facts, "draws": run.draws, "bound": run.bound, "parts": run.parts}
        hides = run.hides_gradients
        write(
            folder / f"rank{run.rank}.json", **found, hides_gradients=hides, **_error_fields(error)
        )


def _error_fields(error: BaseException | None) -> dict[str, str]:
    """Return the fields for an error, and for its message if it is a refusal."""
    if error is None:
        return {"error": "", "refusal": ""}
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    refusals = [str(one) for one in chain if isinstance(one, Unsupported | UsageError)]
    return {
        "error": f"{type(error).__name__}: {error}",
        "refusal": refusals[-1] if refusals else "",
    }


def _changed(before: Mapping[str, object]) -> str:
    try:
        assert_torch_unchanged(before)
    except AssertionError as difference:
        return str(difference)
    return ""


if __name__ == "__main__":
    main(CheckRequest(**json.loads(sys.argv[1])))
