"""One study on several ranks: rank 0 decides parameters, pruning and values, and stores each trial
once.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

HEAD = SCRIPTS / "study_head.py"

INSIDE = SCRIPTS / "study_inside.py"
STORED = SCRIPTS / "study_stored.py"
EACH = SCRIPTS / "study_of_sessions.py"


def test_a_study_inside_the_block() -> None:
    found = fork_script(INSIDE).json()
    for name in (
        "plain",
        "best",
        "GridSampler",
        "pruned",
        "failed",
        "asked",
        "enqueued",
        "timeout",
    ):
        assert found[name][0] == found[name][1], name
    assert len(found["plain"][0]) == 4 and all(
        state == "COMPLETE" for *_, state in found["plain"][0]
    )
    assert {state for *_, state in found["pruned"][0]} == {"COMPLETE", "PRUNED"}
    assert [state for *_, state in found["failed"][0]] == ["FAIL", "FAIL"]
    assert len(found["enqueued"][0]) == 2 and found["enqueued"][0][0][1]["width"] == 3
    assert 1 <= len(found["timeout"][0]) < 50
    assert "use n_jobs=1" in found["jobs"] and "rank 0's sampler" in " ".join(
        found["explain"].split()
    )
    assert found["restored"].startswith("optuna")


def test_what_is_stored_is_stored_once() -> None:
    found = fork_script(STORED).json()
    assert found["before"] == [found["stored"]["before"]] * 2 and len(found["before"][0]) == 4
    assert found["again"] == [found["stored"]["inside"]] * 2 and len(found["again"][0]) == 2
    assert found["duplicated"] == 2


def test_a_session_in_each_trial() -> None:
    found = fork_script(EACH).json()
    for trials in found.values():
        assert [state for *_, state in trials] == ["COMPLETE", "PRUNED"]
        assert all(
            set(params) == {"before", "kind", "lr", "width", "dropout"} for _, params, *_ in trials
        )


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        (["ValueError", ""], "rank 0 in another way than on the others: ValueError: no."),
        (["", "ValueError"], "rank 1 in another way than on the others: ValueError: no."),
        (
            ["ValueError", "TrialPruned"],
            "rank 0 in another way than on the others: ValueError: no.",
        ),
        (["TrialPruned", "ValueError"], ""),
        (["", "TrialPruned"], ""),
    ],
)
def test_an_objective_that_fails_in_other_ways_on_other_ranks(errors, said):
    """No rank goes on with a trial that failed elsewhere, also if one rank's error is caught."""
    result = fork_script(SCRIPTS / "study_apart.py", json.dumps(errors))
    if said:
        assert f"RanksDiverged: the objective failed on {said}" in result.stderr
    else:
        assert result.json() == [["PRUNED", "COMPLETE"]] * 2


def test_the_report_of_a_deadlock_quotes_the_error_of_one_rank():
    """Rank 0 waits for rank 1 within the objective, and rank 1 for rank 0 at its end."""
    result = fork_script(SCRIPTS / "study_apart.py", json.dumps(["", "ValueError"]), "early")
    assert "rank 1 waits in study.optimize after ValueError: no, at " in result.stderr
