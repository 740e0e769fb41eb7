"""The conformance kit under DeepSpeed, 1F1B, tensor parallel and 2D."""

from __future__ import annotations

import itertools

import pytest
from engines import ENGINES, LIMIT_S, Engine
from pairs import covering, mixed

from torchbus_testing.conformance import CaseOutcome, check
from torchbus_testing.conformance.rules import RULES, find

DEEPSPEED = ("deepspeed", "torch._inductor.compile_fx")  # the second takes long, too


def cases() -> list[tuple[str, str, int]]:
    """Each engine and rule, with one of the numbers of ranks."""
    every = itertools.product(ENGINES, [rule.name for rule in RULES], (2, 3, 4))
    return covering(mixed(row for row in every if row[2] in ENGINES[row[0]].ranks))


def check_deepspeed(rule: str, engine: Engine, ranks: int) -> CaseOutcome:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    return check(find(rule), engine.subject, ranks, limit_s=LIMIT_S, preloaded=DEEPSPEED)


@pytest.mark.share(101)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "rule", "ranks"), cases())
def test_an_engine_holds_the_rules(name: str, rule: str, ranks: int) -> None:
    engine = ENGINES[name]
    if name.startswith("deepspeed"):
        outcome = check_deepspeed(rule, engine, ranks)
    else:
        outcome = check(find(rule), engine.subject, ranks, limit_s=LIMIT_S)
    if rule in engine.diverges:
        text = str(outcome)
        assert "RanksDiverged" in text and engine.diverges[rule] in text, text
        return
    assert outcome.holds, str(outcome)
    words = engine.refused.get(rule, "")
    assert bool(words) == bool(outcome.refused) and words in outcome.refused, str(outcome)


def test_deepspeed_without_zero_replaces_the_gradients_of_a_rank_without_samples() -> None:
    outcome = check_deepspeed("not-a-number", ENGINES["deepspeed_stage_0"], 2)
    assert outcome.holds, str(outcome)


def test_every_name_in_the_tables_is_a_rule() -> None:
    named = {name for one in ENGINES.values() for name in (*one.refused, *one.diverges)}
    assert named <= {rule.name for rule in RULES}
