"""The conformance kit under DeepSpeed, 1F1B, tensor parallel and 2D."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engines import ENGINES, rows

from torchbus_testing.conformance import check
from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.rules import RULES

LIMIT_S = 240.0
"""Of a case: each imports DeepSpeed, which takes long on a busy machine."""


def cases() -> Iterator[object]:
    for rule in RULES:
        for name, ranks, quick in rows():
            marks = [] if quick else pytest.mark.slow
            yield pytest.param(name, rule, ranks, id=f"{name}-{rule}-{ranks}", marks=marks)


@pytest.mark.share(101)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "rule", "ranks"), list(cases()))
def test_an_engine_holds_the_rules(name: str, rule: Rule, ranks: int) -> None:
    if name.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    engine = ENGINES[name]
    outcome = check(rule, engine.subject, ranks, limit_s=LIMIT_S)
    if rule.name in engine.diverges:
        text = str(outcome)
        assert "RanksDiverged" in text and engine.diverges[rule.name] in text, text
        return
    assert outcome.holds, str(outcome)
    words = engine.refused.get(rule.name, "")
    assert bool(words) == bool(outcome.refused) and words in outcome.refused, str(outcome)


def test_deepspeed_without_zero_replaces_the_gradients_of_a_rank_without_samples() -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    rule = next(rule for rule in RULES if rule.name == "not-a-number")
    outcome = check(rule, ENGINES["deepspeed_stage_0"].subject, 2, limit_s=LIMIT_S)
    assert outcome.holds, str(outcome)


def test_every_name_in_the_tables_is_a_rule() -> None:
    named = {name for one in ENGINES.values() for name in (*one.refused, *one.diverges)}
    assert named <= {rule.name for rule in RULES}
