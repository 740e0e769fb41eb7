"""The conformance kit under DeepSpeed, 1F1B, tensor parallel and 2D."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from engines import ENGINES
from pairs import covering, mixed

from torchbus_testing.conformance import check
from torchbus_testing.conformance.rules import RULES, find
from torchbus_testing.forking import ForkServer, fork_script

LIMIT_S = 240.0
"""Of a case: each imports DeepSpeed, which takes long on a busy machine."""


DEEPSPEED = ("deepspeed", "torch._inductor.compile_fx")  # the second takes long, too


def cases() -> list[tuple[str, str, int]]:
    """Each engine and rule, with one of the numbers of ranks."""
    every = itertools.product(ENGINES, [rule.name for rule in RULES], (2, 3, 4))
    return covering(mixed(row for row in every if row[2] in ENGINES[row[0]].ranks))


@pytest.fixture(scope="module")
def warm() -> Iterator[ForkServer]:
    """It has imported what each case of DeepSpeed needs."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    with ForkServer(*DEEPSPEED) as server:
        yield server


@pytest.mark.share(101)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "rule", "ranks"), cases())
def test_an_engine_holds_the_rules(
    name: str, rule: str, ranks: int, request: pytest.FixtureRequest
) -> None:
    engine, of_deepspeed = ENGINES[name], name.startswith("deepspeed")
    run_script = request.getfixturevalue("warm").run if of_deepspeed else fork_script
    outcome = check(find(rule), engine.subject, ranks, limit_s=LIMIT_S, run_script=run_script)
    if rule in engine.diverges:
        text = str(outcome)
        assert "RanksDiverged" in text and engine.diverges[rule] in text, text
        return
    assert outcome.holds, str(outcome)
    words = engine.refused.get(rule, "")
    assert bool(words) == bool(outcome.refused) and words in outcome.refused, str(outcome)


def test_deepspeed_without_zero_replaces_the_gradients_of_a_rank_without_samples(
    warm: ForkServer,
) -> None:
    subject = ENGINES["deepspeed_stage_0"].subject
    outcome = check(find("not-a-number"), subject, limit_s=LIMIT_S, run_script=warm.run)
    assert outcome.holds, str(outcome)


def test_every_name_in_the_tables_is_a_rule() -> None:
    named = {name for one in ENGINES.values() for name in (*one.refused, *one.diverges)}
    assert named <= {rule.name for rule in RULES}
