"""Plugins that break training in one way each: ``torchbus verify`` finds all of them, with tensor
and step.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verify_broken import ALL

from torchbus_testing.forking import fork_script

BROKEN = Path(__file__).with_name("verify_broken.py")
WRONG = {
    "NotAveraged": (
        "gradient",
        "model.hidden.weight",
        3,
        "gradients that are not averaged as they should be",
    ),
    "AveragedTwice": (
        "gradient",
        "model.hidden.weight",
        3,
        "gradients that are not averaged as they should be",
    ),
    "RaggedWeight": (
        "gradient",
        "model.hidden.weight",
        7,
        "gradients that are not averaged as they should be",
    ),
    "OneTensorLost": ("gradient", "model.out.weight", 3, "gradients that something changes"),
    "Rounded": ("gradient", "model.hidden.weight", 3, "gradients that something changes"),
    "NotCleared": ("gradient", "model.hidden.weight", 4, "gradients that something changes"),
    "StaleBuffer": ("buffer", "model.calls", 5, "a buffer that something changes"),
    "RepeatedSamples": ("gradient", "model.hidden.weight", 3, "other samples"),
    "SchedulerTwice": (
        "learning rate",
        "of optimizer 0",
        8,
        "a learning rate that something changes",
    ),
    "StepLeftOut": ("order", "", 9, "steps that are left out or added"),
    "MomentumLost": (
        "parameter",
        "model.hidden.weight",
        7,
        "a step that does something else with the same gradients",
    ),
}
"""By plugin: what differs first, in which tensor and step (from 1), and the cause."""
BESIDE = {
    "OneRankAstray": (
        2,
        "ranks that differ",
        "from step 3 on rank 1 has another model.out.bias than rank 0",
    ),
    "SavedByRank1": (2, "files", "model.pt.1 written by the session's run, not by the plain one"),
    "TornFile": (2, "files", "model.pt can't be read whole"),
    "PartOfEvaluation": (
        1,
        "a number that each rank counts separately",
        "correct 2/10', not 'epoch 0",
    ),
}
"""By plugin, where the numbers of all steps are the same."""
QUICK = ("AveragedTwice", "TornFile")


def broken(name):
    return json.loads(fork_script(BROKEN, name, timeout_s=300).ok().stdout)


def marked(table):
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in table]


def test_every_plugin_is_in_a_table():
    assert set(ALL) == {*WRONG, *BESIDE} and len(ALL) >= 12


@pytest.mark.timeout(300)
def test_without_a_broken_plugin_the_script_is_the_same():
    verdict = broken("nothing")
    assert verdict["status"] == 0 and not verdict["causes"] and not verdict["notes"]
    assert 0 < verdict["largest"] < verdict["allowed"] < 1e-12


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", marked(WRONG))
def test_numbers_that_are_wrong(name):
    kind, tensor, step, cause = WRONG[name]
    verdict = broken(name)
    first = verdict["first"]
    assert (first["kind"], first["name"], first["step"] + 1) == (kind, tensor, step)
    assert [one["name"] for one in verdict["causes"]] == [cause] and verdict["status"] == 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", marked(BESIDE))
def test_what_is_wrong_beside_the_numbers(name):
    status, cause, words = BESIDE[name]
    verdict = broken(name)
    assert verdict["status"] == status and verdict["first"] is None
    assert verdict["causes"][0]["name"] == cause and words in verdict["causes"][0]["found"]
